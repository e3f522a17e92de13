package inboxtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/onceward/onceward/inbox"
)

// faulty is a good inbox behind a fault.
type faulty struct {
	Inbox
	db *sqlx.DB

	// What is set has its say, in this order.
	settings func(cfg *inbox.Config)
	ctx      func(context.Context) context.Context
	message  func(m *inbox.Message)
	handler  func(m inbox.Message, tx *sqlx.Tx, call func() error) error // around each call
	whole    func(ctx context.Context, ms []inbox.Message, fn handler) []inbox.Result
	result   func(m inbox.Message, r *inbox.Result)
}

func (f *faulty) ApplyBatch(ctx context.Context, ms []inbox.Message, fn func(ctx context.Context, tx *sqlx.Tx, i int) error) []inbox.Result {
	if f.ctx != nil {
		ctx = f.ctx(ctx)
	}
	given := ms
	if f.message != nil {
		ms = append([]inbox.Message{}, ms...)
		for i := range ms {
			f.message(&ms[i])
		}
	}
	run := fn
	if f.handler != nil {
		run = func(ctx context.Context, tx *sqlx.Tx, i int) error {
			return f.handler(ms[i], tx, func() error { return fn(ctx, tx, i) })
		}
	}
	var rs []inbox.Result
	if f.whole != nil {
		rs = f.whole(ctx, ms, run)
	} else {
		rs = f.Inbox.ApplyBatch(ctx, ms, run)
	}
	if f.result != nil {
		for i := range rs {
			f.result(given[i], &rs[i])
		}
	}
	return rs
}

// one applies a message of its own, with that handler.
func (f *faulty) one(m inbox.Message, fn handler) inbox.Result {
	return f.Inbox.ApplyBatch(context.Background(), []inbox.Message{m}, fn)[0]
}

// mark writes down a message as decided, without its handler.
func (f *faulty) mark(m inbox.Message) inbox.Result { return f.one(m, nothing) }

// inTx runs a handler in a transaction that the inbox knows nothing of.
func (f *faulty) inTx(ctx context.Context, fn handler, i int) error {
	tx, err := f.db.Beginx()
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := fn(ctx, tx, i); err != nil {
		return err
	}
	return tx.Commit()
}

// each applies one message after the other.
func (f *faulty) each(ms []inbox.Message, one func(m inbox.Message, i int) inbox.Result) []inbox.Result {
	rs := make([]inbox.Result, len(ms))
	for i, m := range ms {
		rs[i] = one(m, i)
	}
	return rs
}

func nothing(context.Context, *sqlx.Tx, int) error { return nil }

// unique returns a message that nobody else has, with those fences.
func unique(fences ...inbox.Fence) inbox.Message { return with(rand.Text(), fences...) }

// failedBy is the result of a handler's error.
func failedBy(err error) inbox.Result {
	if err == nil {
		return inbox.Result{Outcome: inbox.Applied}
	}
	return inbox.Result{Outcome: inbox.Failed, Err: err}
}

// decided reports whether the message is in the table.
func (f *faulty) decided(m inbox.Message) bool {
	var n int
	err := f.db.Get(&n, "SELECT count(*) FROM inbox WHERE id = $1", m.ID)
	return err == nil && n > 0
}

// unsorted is an inbox that takes its locks in the order of the batch.
func (f *faulty) unsorted(ctx context.Context, ms []inbox.Message, fn handler) []inbox.Result {
	rs := make([]inbox.Result, len(ms))
	err := f.inTx(ctx, func(ctx context.Context, tx *sqlx.Tx, _ int) error {
		for i, m := range ms {
			res, err := tx.ExecContext(ctx, "INSERT INTO inbox (key, scope, id) VALUES (md5($1)::uuid, 1, $1) ON CONFLICT (key) DO NOTHING", m.ID)
			if err != nil {
				return err
			}
			if n, err := res.RowsAffected(); err != nil || n == 0 {
				rs[i].Outcome = inbox.Duplicate
				continue
			}
			if err := fn(ctx, tx, i); err != nil {
				return err
			}
			rs[i].Outcome = inbox.Applied
		}
		return nil
	}, 0)
	if err != nil {
		for i := range rs {
			rs[i] = inbox.Result{Outcome: inbox.Again, Err: &inbox.AgainError{ID: ms[i].ID, Err: err}}
		}
	}
	return rs
}

var errMade = errors.New("made up")

func charge(m inbox.Message, o inbox.Outcome, r *inbox.Result) {
	if r.Outcome == o {
		*r = inbox.Result{Outcome: inbox.Failed, Err: fmt.Errorf("message %q: %w", m.ID, r.Err)}
	}
}
