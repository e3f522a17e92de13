package inbox

import (
	"context"
	"fmt"
	"strings"

	"github.com/jmoiron/sqlx"
)

// A Queue takes the statements of one message. They are sent once its handler has
// returned, in their order, so a handler does not learn what came of them: use it
// for effects that are decided by the message alone, or by conditions within SQL.
// A Queue must not be used after that, nor by several goroutines.
type Queue struct {
	statements []statement
	err        error
}

// Exec queues one statement, with arguments as the driver takes them. They must not
// be changed until the call of [Inbox.ApplyQueue] returns.
func (q *Queue) Exec(query string, args ...any) { q.add(statement{query, args, anyRows}) }

// ExecRows is [Queue.Exec] for a statement that must affect exactly so many rows.
// Else the message fails with a [*RowsError], and its writes are gone.
func (q *Queue) ExecRows(rows int64, query string, args ...any) {
	if rows < 0 && q.err == nil {
		q.err = fmt.Errorf("rows is %d for %q, must be at least 0", rows, query)
	}
	q.add(statement{query, args, rows})
}

const anyRows = -1

func (q *Queue) add(s statement) {
	if endsTransaction(s.query) && q.err == nil {
		q.err = fmt.Errorf("%w: queued %q", ErrEnded, s.query)
	}
	q.statements = append(q.statements, s)
}

// endsTransaction reports whether a statement is about the transaction itself. Sent
// with others, it would be found out too late.
func endsTransaction(query string) bool {
	word, _, _ := strings.Cut(strings.TrimLeft(query, " \t\r\n"), " ")
	switch strings.ToUpper(strings.TrimRight(word, "; \t\r\n")) {
	case "BEGIN", "START", "COMMIT", "END", "ROLLBACK", "ABORT", "SAVEPOINT", "RELEASE":
		return true
	}
	return false
}

// A RowsError says that a queued statement did not affect as many rows as it must.
type RowsError struct {
	Query string
	Rows  int64
	Want  int64
}

func (e *RowsError) Error() string {
	return fmt.Sprintf("inbox: statement affected %d rows, must affect %d: %s", e.Rows, e.Want, e.Query)
}

// check returns an error if a statement has not affected as many rows as it must.
func (s statement) check(rows int64) error {
	if s.rows == anyRows || s.rows == rows {
		return nil
	}
	return &RowsError{s.query, rows, s.rows}
}

// ApplyQueue is [Inbox.ApplyBatch] for a handler that queues its statements in place of
// running them. On pgx the statements of up to [MaxSet] messages go to the server in one
// flight, each message apart from the others; with other drivers, in transactions of up
// to [MaxBatch], one after another. A message that fails costs the others of its stride a second run on
// the server, and none a second call of fn, unless the connection is lost or COMMIT refused.
//
// A message whose handler skips is decided with what it queued before.
//
// On pgx COMMIT goes with the last statements if none of them is of [Queue.ExecRows] and
// no message has failed. If ctx ends while those statements run, the outcome of that
// COMMIT is unknown, and the messages are [Again].
func (b *Inbox) ApplyQueue(ctx context.Context, ms []Message, fn func(ctx context.Context, q *Queue, i int) error) []Result {
	most := MaxBatch
	if b.pgx {
		most = MaxSet
	}
	return b.applyAll(ctx, ms, most, func(s *strider, fresh []*entry) error {
		if s.t.pipe == nil {
			return each(oneByOne(fn))(s, fresh)
		}
		return s.together(fresh, fn)
	})
}

// A queuer is a handler that queues.
type queuer = func(ctx context.Context, q *Queue, i int) error

// queued runs a handler, and returns what it has queued.
func queued(ctx context.Context, fn queuer, i int) ([]statement, error) {
	var q Queue
	err := fn(ctx, &q, i)
	if q.err != nil && (err == nil || skipped(err)) {
		err = q.err
	}
	return q.statements, err
}

// oneByOne is the handler that runs what fn queues.
func oneByOne(fn queuer) handler {
	return func(ctx context.Context, tx *sqlx.Tx, i int) error {
		statements, result := queued(ctx, fn, i)
		if result != nil && !skipped(result) {
			return result
		}
		for _, s := range statements {
			done, err := tx.ExecContext(ctx, s.query, s.args...)
			if err != nil {
				return err
			}
			if s.rows == anyRows {
				continue
			}
			rows, err := done.RowsAffected()
			if err != nil {
				return err
			}
			if err := s.check(rows); err != nil {
				return err
			}
		}
		return result
	}
}
