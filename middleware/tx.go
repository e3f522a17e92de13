package middleware

import (
	"context"
	"fmt"

	"github.com/jmoiron/sqlx"
	"github.com/onceward/onceward/reentrant"
)

// Tx runs f in a transaction of its own for each message, without an inbox: for
// effects that may safely happen twice. Nothing stops a second delivery, and
// nothing stops a holder whose lock has passed to another.
func Tx(db *sqlx.DB, f TxFunc) Handler {
	if db == nil || f == nil {
		panic("middleware: Tx of a nil database or handler")
	}
	return HandlerFunc(func(ctx context.Context, ms []*Message) []error {
		errs := make([]error, len(ms))
		for i, m := range ms {
			ctx := reentrant.Narrow(ctx, m.Names()...)
			errs[i] = inTx(ctx, db, func(tx *sqlx.Tx) error {
				return blame(ctx, protect(func() error { return f(ctx, tx, m.Record) }))
			})
		}
		return errs
	})
}

// inTx runs fn in a transaction: commit if it returns nil or skips, else roll
// back, which it also does if ctx is over.
func inTx(ctx context.Context, db *sqlx.DB, fn func(tx *sqlx.Tx) error) error {
	conn, err := db.Connx(ctx) // waiting for a free connection ends with ctx
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close()
	// The transaction itself must outlive ctx: database/sql rolls back on its own
	// when the context given to BeginTxx ends, even in the middle of a COMMIT.
	// Statements in fn use ctx, so they end with it all the same.
	tx, err := conn.BeginTxx(context.WithoutCancel(ctx), nil)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer tx.Rollback() // after a commit it does nothing
	result := fn(tx)
	if Classify(result) != Decided {
		return result
	}
	if ctx.Err() != nil {
		return fmt.Errorf("not committed: %w", context.Cause(ctx))
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err) // the outcome may be unknown
	}
	return result
}
