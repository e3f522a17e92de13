package service

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/jmoiron/sqlx"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/middleware"
	"github.com/onceward/onceward/reentrant"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/fx"
)

// HandlerParams are what [NewHandler] needs.
type HandlerParams struct {
	fx.In

	Config   Config
	DB       *sqlx.DB
	Box      *inbox.Inbox
	Locker   *reentrant.Locker
	Payments *Payments
	Hooks    Hooks
}

// NewHandler returns the chain, outermost first. A service has the one of [Both];
// the others are here to be compared with it.
func NewHandler(p HandlerParams) middleware.Handler {
	var (
		effect  = middleware.TxFunc(handle)
		observe = middleware.Observe(p.Hooks.Decided)
		lock    = middleware.Lock(p.Locker)
		refund  = Refund(p.DB, p.Payments, p.Hooks)
	)
	switch p.Config.Guard {
	case None:
		return middleware.Chain(middleware.Tx(p.DB, effect), observe, refund)
	case Lock:
		return middleware.Chain(middleware.Tx(p.DB, effect), observe, lock, refund)
	case Inbox:
		return middleware.Chain(middleware.Inbox(p.Box, effect), observe, refund)
	}
	return middleware.Chain(middleware.Inbox(p.Box, effect), observe, lock, refund)
}

// handle is the effect of an event. It runs in the transaction that claimed it.
//
// It trusts what [Refund] saw before the transaction, and does not look at the order
// again: this is how the guards show what they are good for. Code that has a row to
// ask writes "WHERE state = 'unpaid'" as well; effects that have none, such as a
// line in a ledger, a movement of stock, a mail in an outbox, are why there is an inbox.
func handle(ctx context.Context, tx *sqlx.Tx, r *kgo.Record) error {
	e, err := ParseEvent(r)
	if err != nil {
		return middleware.Permanent(err)
	}
	if e.Kind == Remind {
		return remind(ctx, tx, e)
	}
	f, err := found(ctx, r)
	if err != nil {
		return middleware.Stop(err)
	}
	if f.closed {
		return middleware.Skip("order is closed")
	}
	return closeOrder(ctx, tx, e, f.payment)
}

// closeSQL closes an order, and writes a row for each effect. One statement, since
// each costs a trip to the server for each message of a batch.
const closeSQL = `
WITH o AS (
  UPDATE orders SET state = 'closed' WHERE id = $1 RETURNING id, sku, qty, amount, period
), returned AS (
  INSERT INTO stock_moves (order_id, sku, qty) SELECT id, sku, qty FROM o
), refunded AS (
  INSERT INTO refunds (order_id, amount, payment) SELECT id, amount, $2 FROM o
)
INSERT INTO ledger (order_id, amount, period) SELECT id, amount, period FROM o`

func closeOrder(ctx context.Context, tx *sqlx.Tx, e Event, payment string) error {
	res, err := tx.ExecContext(ctx, closeSQL, e.Order, payment)
	return wroteOne(e, res, err)
}

const remindSQL = `INSERT INTO notices (order_id, deadline) SELECT id, deadline FROM orders WHERE id = $1`

func remind(ctx context.Context, tx *sqlx.Tx, e Event) error {
	res, err := tx.ExecContext(ctx, remindSQL, e.Order)
	return wroteOne(e, res, err)
}

// wroteOne tells an order that is not there from one that is. It never will be: it
// was before its event.
func wroteOne(e Event, res sql.Result, err error) error {
	if err != nil {
		return fmt.Errorf("%s order %d: %w", e.Kind, e.Order, err)
	}
	if n, err := res.RowsAffected(); err != nil || n == 1 {
		return err
	}
	return middleware.Permanent(fmt.Errorf("%s order %d: there is no such order", e.Kind, e.Order))
}
