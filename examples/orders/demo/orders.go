package demo

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/lib/pq"
	"github.com/onceward/onceward/examples/orders/service"
)

// The months of the books. The lines of one order go to a month of its own, for late.go.
const (
	period     = "2026-11"
	periodLate = "2026-12"
)

// plan says which orders play which part. IDs are given in this order.
type plan struct {
	wave1  []int64 // announced by the scan job from the start
	pause  []int64 // told by the parent, in pause.go
	late   int64   // in late.go
	killed int64   // in kill.go
	wave2  []int64 // announced in kill.go
}

// held is how many orders the paused instance holds. Each keeps one of its four workers.
const held = 3

func newPlan(orders int) plan {
	next := int64(0)
	take := func(n int) []int64 {
		ids := make([]int64, n)
		for i := range ids {
			next++
			ids[i] = next
		}
		return ids
	}
	rest := orders - held - 2
	var p plan
	p.wave1 = take(rest - rest/8)
	p.pause = take(held)
	p.late = take(1)[0]
	p.killed = take(1)[0]
	p.wave2 = take(rest / 8)
	return p
}

const insertSQL = `
INSERT INTO orders (id, sku, qty, amount, period, deadline, announced_at)
SELECT id, sku, qty, amount, period, now() - interval '1 minute', CASE WHEN $6 THEN now() END
FROM unnest($1::bigint[], $2::text[], $3::int[], $4::bigint[], $5::text[]) AS t(id, sku, qty, amount, period)`

// place places orders whose deadline is over. What is in them follows from the seed. The
// scan job passes over those that are marked as announced.
func (w *world) place(ctx context.Context, announced bool, ids ...int64) error {
	var skus, periods pq.StringArray
	var qtys, amounts pq.Int64Array
	for _, id := range ids {
		r := rand.New(rand.NewPCG(w.opts.Seed, uint64(id)))
		skus = append(skus, fmt.Sprintf("sku-%02d", r.IntN(40)))
		qtys = append(qtys, 1+r.Int64N(5))
		amounts = append(amounts, 100+r.Int64N(50_000))
		if id == w.plan.late {
			periods = append(periods, periodLate)
		} else {
			periods = append(periods, period)
		}
	}
	if _, err := w.db.ExecContext(ctx, insertSQL, pq.Int64Array(ids), skus, qtys, amounts, periods, announced); err != nil {
		return fmt.Errorf("place %d orders: %w", len(ids), err)
	}
	return nil
}

// event returns the event of an order.
func (w *world) event(ctx context.Context, kind string, order int64) (service.Event, error) {
	var deadline time.Time
	if err := w.db.GetContext(ctx, &deadline, `SELECT deadline FROM orders WHERE id = $1`, order); err != nil {
		return service.Event{}, fmt.Errorf("look up order %d: %w", order, err)
	}
	return service.Event{Kind: kind, Order: order, Deadline: deadline.Unix()}, nil
}
