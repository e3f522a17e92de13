package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/jmoiron/sqlx"
	"github.com/onceward/onceward/bench/internal/compare"
	"github.com/onceward/onceward/inbox"
)

// Ways of a message.
const (
	effectAlone  = "effect alone"
	withInbox    = "Apply: claim, fence and effect"
	queued       = "ApplyQueue: claim, fence and effect"
	effectFlight = "effect alone, all of it in one flight"
)

const conns = 8 // and callers

// single compares a message that goes through the inbox, with a fence, with the same
// effect in a transaction and nothing else, as applications write it: a statement, its
// answer, the next one. What queues its statements saves trips with and without an
// inbox; what it is compared with is said in a note too.
func single(ctx context.Context, b *bench) error {
	var cases []compare.Case
	for driver, ways := range map[string][]string{libPQ: {effectAlone, withInbox}, pgx: {effectAlone, withInbox, queued, effectFlight}} {
		w, err := b.newWorld(ctx, driver, conns, inbox.Config{Prepare: true})
		if err != nil {
			return err
		}
		defer w.db.Close()
		effect, err := w.prepare(ctx)
		if err != nil {
			return err
		}
		for _, way := range ways {
			cases = append(cases, compare.Case{Name: driverNames[driver] + ", " + way, Run: w.single(b, way, effect)})
		}
	}
	slices.SortFunc(cases, func(a, b compare.Case) int { return cmp.Compare(a.Name, b.Name) })
	res, err := compare.Rounds(ctx, b.rounds, cases)
	if err != nil {
		return err
	}
	b.Table("single", res, perSecond, allocs, clientCPU, serverCPU)
	ratio := func(driver, way, other string) compare.Values {
		return res.Ratio(perSecond, driver+", "+way, driver+", "+other)
	}
	b.AtLeast("inbox/single/pq/of-effect-alone", ratio("pq", withInbox, effectAlone), 0.65)
	b.AtLeast("inbox/single/pgx/of-effect-alone", ratio("pgx", withInbox, effectAlone), 0.8)
	b.AtLeast("inbox/single/pgx-queued/of-effect-alone", ratio("pgx", queued, effectAlone), 0.8)
	b.Note("pgx, queued, of the effect alone in one flight: %.2f", ratio("pgx", queued, effectFlight).Median())
	return nil
}

// single measures one of the ways.
func (w *world) single(b *bench, way string, effect effect) func(ctx context.Context) (compare.Sample, error) {
	rows := "inbox"
	var op func(ctx context.Context, m message) error
	switch way {
	case effectAlone:
		rows = ""
		op = func(ctx context.Context, m message) error {
			return w.inTx(ctx, func(tx *sqlx.Tx) error { return effect(ctx, tx, m) })
		}
	case effectFlight:
		rows = ""
		op = w.inFlight
	case withInbox:
		op = func(ctx context.Context, m message) error {
			return w.box.Apply(ctx, m.claim(w.grants.Add(1)), func(ctx context.Context, tx *sqlx.Tx) error { return effect(ctx, tx, m) }).Err
		}
	case queued:
		op = func(ctx context.Context, m message) error {
			claims := []inbox.Message{m.claim(w.grants.Add(1))}
			return w.box.ApplyQueue(ctx, claims, func(_ context.Context, q *inbox.Queue, _ int) error {
				queue(q, m.id, m.order)
				return nil
			})[0].Err
		}
	}
	return func(ctx context.Context) (compare.Sample, error) {
		return w.drive(ctx, b, conns, rows, func(ctx context.Context, caller, turn int) (int, error) {
			return 1, op(ctx, feed(caller, conns, turn, 1, 0)[0])
		})
	}
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
