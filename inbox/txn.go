package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jmoiron/sqlx"
)

// A txn is a transaction on a connection of its own.
type txn struct {
	b    *Inbox
	conn *sqlx.Conn
	tx   *sqlx.Tx
	pipe *pipe // nil: statements go one by one

	over      bool // COMMIT or ROLLBACK was tried
	abandoned bool // its answer is still to come; whoever waits for it closes conn
}

// begin begins a transaction. The wait for a free connection ends with ctx.
func (b *Inbox) begin(ctx context.Context) (t *txn, err error) {
	err = b.overStale(ctx, func() (stale bool, err error) {
		t, stale, err = b.tryBegin(ctx)
		return stale, err
	})
	return t, err
}

// claimed begins a transaction with the claim of messages, and returns those that may
// run. Where the driver can do that, both are one flight.
func (b *Inbox) claimed(ctx context.Context, scope int64, es []*entry) (t *txn, fresh []*entry, err error) {
	err = b.overStale(ctx, func() (stale bool, err error) {
		if t, stale, err = b.tryPipe(ctx); err != nil {
			return stale, err
		}
		fresh, err = b.claim(ctx, t, scope, es)
		if err == nil && es[0].redriven {
			fresh, err = b.reclaim(ctx, t, scope, es[0], fresh)
		}
		if err != nil {
			_ = t.rollback()
		}
		return t.pipe != nil && disconnected(err), err
	})
	return t, fresh, err
}

// overStale calls try again, as long as it meets connections that were dead before.
func (b *Inbox) overStale(ctx context.Context, try func() (stale bool, err error)) error {
	// A pool may be full of connections that died with the last server. Each is
	// found out by its first statement, and database/sql tries another only for
	// those who did not ask for one connection to keep.
	tries := 1
	for n := 1; ; n++ {
		stale, err := try()
		if err == nil {
			return nil
		}
		if n == 1 {
			tries += b.db.Stats().Idle + 1
		}
		if !stale || n >= tries || ctx.Err() != nil {
			return err
		}
	}
}

func (b *Inbox) tryBegin(ctx context.Context) (_ *txn, stale bool, _ error) {
	conn, err := b.db.Connx(ctx)
	if err != nil {
		return nil, false, fmt.Errorf("connect: %w", err)
	}
	// The transaction must outlive ctx: database/sql rolls back on its own when the
	// context given to BeginTxx ends, even in the middle of a COMMIT.
	//
	// READ COMMITTED by name: under a server's default of REPEATABLE READ the wait
	// for a rival would end in a serialization failure each time.
	tx, err := conn.BeginTxx(context.WithoutCancel(ctx), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		_ = conn.Close()
		return nil, disconnected(err), fmt.Errorf("begin: %w", err)
	}
	return &txn{b: b, conn: conn, tx: tx}, false, nil
}

// tryPipe is tryBegin, but that BEGIN may be left to the claim.
func (b *Inbox) tryPipe(ctx context.Context) (_ *txn, stale bool, _ error) {
	if !b.pgx {
		return b.tryBegin(ctx)
	}
	conn, err := b.db.Connx(ctx)
	if err != nil {
		return nil, false, fmt.Errorf("connect: %w", err)
	}
	p, tx, err := newPipe(context.WithoutCancel(ctx), b.db, conn)
	if err != nil {
		_ = conn.Close()
		return nil, disconnected(err), fmt.Errorf("begin: %w", err)
	}
	return &txn{b: b, conn: conn, tx: tx, pipe: p}, false, nil
}

var errNoAnswer = errors.New("no answer")

// commit commits, whatever has become of the caller's context. If it returns
// errNoAnswer or the connection is lost, the outcome is unknown.
func (t *txn) commit() error {
	if t.pipe != nil && t.pipe.finished { // there is nothing to wait for
		t.over = true
		return t.tx.Commit()
	}
	return t.end("COMMIT", t.tx.Commit)
}

// rollback rolls back, unless the transaction is over, and gives the connection
// back. Its error says that the connection is lost, or that somebody else has
// ended the transaction.
func (t *txn) rollback() (err error) {
	if !t.over {
		err = t.end("ROLLBACK", t.tx.Rollback)
	}
	if !t.abandoned {
		_ = t.conn.Close() // fails only if it was closed before
	}
	return err
}

func (t *txn) end(name string, f func() error) error {
	t.over = true
	return t.await(name, f)
}

// await runs f, which has no context of its own, and waits for it no longer than
// CommitTimeout. An answer that comes later is logged.
func (t *txn) await(name string, f func() error) error {
	answer := make(chan error, 1)
	go func() { answer <- f() }()

	timer := time.NewTimer(t.b.cfg.CommitTimeout)
	defer timer.Stop()
	select {
	case err := <-answer:
		return err
	case <-timer.C:
	}
	t.abandoned = true
	go func() {
		err := <-answer // comes at the latest when TCP gives the connection up
		_ = t.conn.Close()
		t.b.cfg.Logger.Warn("inbox: late answer of the database", "to", name, "error", err)
	}()
	return fmt.Errorf("%w to %s within %v", errNoAnswer, name, t.b.cfg.CommitTimeout)
}

// unknown reports whether err, of COMMIT, leaves open what became of the transaction.
func (t *txn) unknown(err error) bool {
	return errors.Is(err, errNoAnswer) || disconnected(err) || state(err) == "" && !ended(err) && !t.alive()
}

// alive reports whether the server still answers on the connection. If it does
// after a COMMIT that returned an error, that error was an answer, too.
func (t *txn) alive() bool {
	ctx, cancel := context.WithTimeout(context.Background(), t.b.cfg.CommitTimeout)
	defer cancel()
	return t.await("ping", func() error { return t.conn.PingContext(ctx) }) == nil
}
