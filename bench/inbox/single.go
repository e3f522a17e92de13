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
	var cases []compare.Case
	drivers := []string{libPQ, pgx}
	for _, driver := range drivers {
		w, err := b.newWorld(ctx, driver, conns, inbox.Config{Prepare: true})
		if err != nil {
			return err
		}
		defer w.db.Close()
		effect, err := w.prepare(ctx)
		if err != nil {
			return err
		}
		alone, ours := w.singles(b, effect)
		cases = append(cases,
			compare.Case{Name: driverNames[driver] + ", " + effectAlone, Run: alone},
			compare.Case{Name: driverNames[driver] + ", " + withInbox, Run: ours})
	}
	res, err := compare.Rounds(ctx, b.rounds, cases)
	if err != nil {
		return err
	}
	b.Table("single", res, perSecond, allocs, clientCPU, serverCPU)
	wanted := map[string]float64{libPQ: 0.65, pgx: 0.8}
	for _, driver := range drivers {
		name := driverNames[driver]
		b.AtLeast("inbox/single/"+name+"/of-effect-alone",
			res.Ratio(perSecond, name+", "+withInbox, name+", "+effectAlone), wanted[driver])
	}
	return nil
}

const (
	conns       = 8 // and callers
	effectAlone = "effect alone"
	withInbox   = "claim, fence and effect"
)

// singles returns the two cases of a driver.
func (w *world) singles(b *bench, effect effect) (alone, ours func(ctx context.Context) (compare.Sample, error)) {
	var grants atomic.Int64
	alone = func(ctx context.Context) (compare.Sample, error) {
		return w.drive(ctx, b, conns, "", func(ctx context.Context, caller, turn int) (int, error) {
			m := feed(caller, conns, turn, 1, 0)[0]
			return 1, w.inTx(ctx, func(tx *sqlx.Tx) error { return effect(ctx, tx, m) })
		})
	}
	ours = func(ctx context.Context) (compare.Sample, error) {
		return w.drive(ctx, b, conns, "inbox", func(ctx context.Context, caller, turn int) (int, error) {
			m := feed(caller, conns, turn, 1, 0)[0]
			r := w.box.Apply(ctx, m.claim(grants.Add(1)), func(ctx context.Context, tx *sqlx.Tx) error { return effect(ctx, tx, m) })
			return 1, r.Err
		})
	}
	return alone, ours
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
