package main

import (
	"context"
	"crypto/rand"
	"fmt"
	mrand "math/rand/v2"
	"strings"

	pgxv5 "github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"
	"github.com/onceward/onceward/inbox"
)

// A message asks to close an order. Its ID is what people choose: long, and random.
type message struct {
	id    string
	order int64
}

// bad is how the IDs of messages begin that fail: the ledger refuses their amount.
const bad = "bad-"

func (m message) amount() int { return amountOf(m.id) }

func amountOf(id string) int {
	if strings.HasPrefix(id, bad) {
		return 0
	}
	return 7
}

// feed returns messages of one caller's own orders, all of distinct orders. A share of
// them fails.
func feed(caller, callers, turn, many int, failing float64) []message {
	own := nOrders / callers
	ms := make([]message, many)
	for i := range ms {
		prefix := "order-"
		if mrand.Float64() < failing {
			prefix = bad
		}
		ms[i] = message{prefix + rand.Text(), int64(caller*own + (turn*many+i)%own)}
	}
	return ms
}

// The effect of a message.
const (
	closeSQL = `UPDATE orders SET state = 'closed', closed = closed + 1 WHERE id = $1`
	noteSQL  = `INSERT INTO ledger (message, order_id, amount) VALUES ($1, $2, $3)`
)

// apply writes the effect of a message.
func apply(ctx context.Context, tx *sqlx.Tx, id string, order int64) error {
	if _, err := tx.ExecContext(ctx, closeSQL, order); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, noteSQL, id, order, amountOf(id))
	return err
}

// queue queues the effect of a message.
func queue(q *inbox.Queue, id string, order int64) {
	q.Exec(closeSQL, order)
	q.Exec(noteSQL, id, order, amountOf(id))
}

// inFlight sends the effect of a message, with BEGIN and COMMIT, in one flight of pgx.
func (w *world) inFlight(ctx context.Context, m message) error {
	conn, err := w.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	return conn.Raw(func(raw any) error {
		var all pgxv5.Batch
		all.Queue(`BEGIN`)
		all.Queue(closeSQL, m.order)
		all.Queue(noteSQL, m.id, m.order, m.amount())
		all.Queue(`COMMIT`)
		return raw.(*stdlib.Conn).Conn().SendBatch(ctx, &all).Close()
	})
}

// The effect of many messages, of distinct orders.
const (
	closeAllSQL = `UPDATE orders SET state = 'closed', closed = closed + 1 WHERE id = ANY ($1::bigint[])`
	noteAllSQL  = `INSERT INTO ledger (message, order_id, amount) SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[])`
)

func applyAll(ctx context.Context, tx *sqlx.Tx, ids []string, orders []int64) error {
	amounts := make([]int64, len(ids))
	for i, id := range ids {
		amounts[i] = int64(amountOf(id))
	}
	if _, err := tx.ExecContext(ctx, closeAllSQL, pq.Array(orders)); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, noteAllSQL, pq.Array(ids), pq.Array(orders), pq.Array(amounts))
	return err
}

// An effect writes that of one message, with statements that each connection prepares
// once.
type effect func(ctx context.Context, tx *sqlx.Tx, m message) error

func (w *world) prepare(ctx context.Context) (effect, error) {
	if w.db.DriverName() == pgx { // it prepares whatever it is given
		return func(ctx context.Context, tx *sqlx.Tx, m message) error { return apply(ctx, tx, m.id, m.order) }, nil
	}
	closing, err := w.db.PrepareContext(ctx, closeSQL)
	if err != nil {
		return nil, err
	}
	noting, err := w.db.PrepareContext(ctx, noteSQL)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, tx *sqlx.Tx, m message) error {
		if _, err := tx.StmtContext(ctx, closing).ExecContext(ctx, m.order); err != nil {
			return err
		}
		_, err := tx.StmtContext(ctx, noting).ExecContext(ctx, m.id, m.order, m.amount())
		return err
	}, nil
}

// inTx commits what f writes, as applications do it.
func (w *world) inTx(ctx context.Context, f func(tx *sqlx.Tx) error) error {
	tx, err := w.db.BeginTxx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer tx.Rollback() // after a commit it does nothing
	if err := f(tx); err != nil {
		return err
	}
	return tx.Commit()
}
