package main

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/jmoiron/sqlx"
	"github.com/onceward/onceward/bench/internal/compare"
	"github.com/onceward/onceward/inbox"
)

// single compares a message that goes through the inbox, with a fence, with the same
// effect in a transaction and nothing else.
func single(ctx context.Context, b *bench) error {
	const conns = 8
	const alone, ours = "effect alone", "claim, fence and effect"
	w, err := b.newWorld(ctx, libPQ, conns, inbox.Config{Prepare: true})
	if err != nil {
		return err
	}
	defer w.db.Close()
	effect, err := w.prepare(ctx)
	if err != nil {
		return err
	}
	var grants atomic.Int64
	res, err := compare.Rounds(ctx, b.rounds, []compare.Case{
		{Name: alone, Run: func(ctx context.Context) (compare.Sample, error) {
			return w.drive(ctx, b, conns, "", func(ctx context.Context, caller, turn int) (int, error) {
				m := feed(caller, conns, turn, 1, 0)[0]
				return 1, w.inTx(ctx, func(tx *sqlx.Tx) error { return effect.apply(ctx, tx, m) })
			})
		}},
		{Name: ours, Run: func(ctx context.Context) (compare.Sample, error) {
			return w.drive(ctx, b, conns, "inbox", func(ctx context.Context, caller, turn int) (int, error) {
				m := feed(caller, conns, turn, 1, 0)[0]
				r := w.box.Apply(ctx, m.claim(grants.Add(1)), func(ctx context.Context, tx *sqlx.Tx) error {
					return effect.apply(ctx, tx, m)
				})
				return 1, r.Err
			})
		}},
	})
	if err != nil {
		return err
	}
	b.Table("single", res, perSecond, allocs, clientCPU, serverCPU)
	b.AtLeast("inbox/single/pq/of-effect-alone", res.Ratio(perSecond, ours, alone), 0.65)
	return nil
}

// claim is what the inbox needs to know of a message.
func (m message) claim(token int64) inbox.Message {
	return inbox.Message{
		ID: m.id, Digest: []byte(m.id),
		Fences:   []inbox.Fence{{Resource: lockName(m.order), Token: token}},
		Position: &inbox.Position{Topic: [16]byte{1}, Partition: int32(m.order % 12), Offset: token},
	}
}

func lockName(order int64) string { return fmt.Sprintf("order:%d", order) }
