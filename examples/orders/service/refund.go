package service

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"

	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"
	"github.com/onceward/onceward/middleware"
	"github.com/twmb/franz-go/pkg/kgo"
)

// A finding is what was learned about an order before its transaction.
type finding struct {
	closed  bool
	payment string // of the refund, if the order was not closed
}

type findingsKey struct{}

// found returns what [Refund] learned about a record.
func found(ctx context.Context, r *kgo.Record) (finding, error) {
	all, _ := ctx.Value(findingsKey{}).(map[*kgo.Record]finding)
	f, ok := all[r]
	if !ok {
		return finding{}, errors.New("no finding about the record, Refund must be in the chain")
	}
	return f, nil
}

// Refund asks the payment service for the refunds of a batch, side by side, and
// passes what it learned on through the context.
//
// It stands between Lock and the transaction. A call over the network may take
// seconds, which nobody wants inside of a transaction; and its effect is not the
// database's, so it happens at least once, whatever the guard: the message ID is the
// key by which the payment service finds its own duplicates.
//
// Like many services, it looks at the order before it acts, and does not ask for a
// refund of a closed one. That saves calls, and nothing more. What was read here
// may be out of date when the transaction commits, lock or no lock: this process
// may be stopped right behind the look, for longer than any lease. With the inbox
// it does no harm, since the claim, in the transaction, has the last word.
func Refund(db *sqlx.DB, pay *Payments, hooks Hooks) middleware.Middleware {
	return func(next middleware.Handler) middleware.Handler {
		return middleware.HandlerFunc(func(ctx context.Context, ms []*middleware.Message) []error {
			errs := make([]error, len(ms))
			findings, err := look(ctx, db, ms)
			if err != nil {
				for i := range errs {
					errs[i] = err
				}
				return errs
			}
			for _, m := range ms {
				hooks.Holding(ctx, m)
			}
			payments := make([]string, len(ms))
			var wg sync.WaitGroup
			for i, m := range ms {
				if f, ok := findings[m.Record]; ok && !f.closed {
					wg.Go(func() { payments[i], errs[i] = pay.Refund(ctx, m.ID) })
				}
			}
			wg.Wait()

			// No look at the leases here: they may end right behind it. The claim tells.
			learned := maps.Clone(findings)
			for i, m := range ms {
				if errs[i] == nil && payments[i] != "" {
					learned[m.Record] = finding{payment: payments[i]}
				}
			}
			middleware.HandOn(context.WithValue(ctx, findingsKey{}, learned), next, ms, errs)
			return errs
		})
	}
}

const lookSQL = `SELECT id FROM orders WHERE id = ANY ($1) AND state = 'closed'`

// look returns a finding for each message that is about a timeout.
func look(ctx context.Context, db *sqlx.DB, ms []*middleware.Message) (map[*kgo.Record]finding, error) {
	orders := make(map[*kgo.Record]int64, len(ms))
	var ids pq.Int64Array
	for _, m := range ms {
		e, err := ParseEvent(m.Record)
		if err != nil {
			return nil, middleware.Permanent(err) // Identify has read it before
		}
		if e.Kind == Timeout {
			orders[m.Record] = e.Order
			ids = append(ids, e.Order)
		}
	}
	if len(ids) == 0 {
		return nil, nil
	}
	var closed []int64
	if err := db.SelectContext(ctx, &closed, lookSQL, ids); err != nil {
		return nil, fmt.Errorf("look at orders: %w", err)
	}
	is := make(map[int64]bool, len(closed))
	for _, id := range closed {
		is[id] = true
	}
	findings := make(map[*kgo.Record]finding, len(orders))
	for r, id := range orders {
		findings[r] = finding{closed: is[id]}
	}
	return findings, nil
}
