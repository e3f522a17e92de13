package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"
)

// A walk goes through a table from end to end, so many pages a round, and removes
// what is old. Where it is is in a row of the database, whose lock makes one process
// at a time take the next round.
//
// Pages, and not an index by age, since an index has to be kept by those who insert.
// Nor does the order of the rows help: once removed rows have made room for new ones,
// old and new lie side by side.
type walk struct {
	b         *Inbox
	scope     func(context.Context) (int64, error) // which row of inbox_purge
	every     time.Duration                        // from the beginning of a walk to that of the next
	roundTime time.Duration
	args      func(scope int64) []any // of remove, after the range of pages

	// first, if not nil, is what the first round of a walk does. It removes no rows of the
	// table, so that the locks of first are not held for as long as that takes.
	first func(ctx context.Context, t *txn, scope int64) error

	enter, take, step, remove string
	table                     string // as the statements name it

	pages int64 // of the next round
}

const (
	firstPages = 128 // 1 MB
	leastPages = 8
	mostPages  = 32_768
)

const (
	enterWalkSQL = `INSERT INTO {inbox_purge} (scope) VALUES ($1::int) ON CONFLICT (scope) DO NOTHING`

	// No row if somebody else is at it, or the last walk began less than $2 ms ago and is
	// over. synchronous_commit: what a crash of the server brings back is removed again.
	// max_hold: whoever is frozen in a round must not keep others from the walk, nor
	// claims from what the round has locked.
	takeWalkSQL = `
SELECT page, pg_relation_size($3::text::regclass) / current_setting('block_size')::bigint AS pages,
  set_config('synchronous_commit', 'off', true) AS synchronous_commit,
  set_config('idle_in_transaction_session_timeout', $4::text, true) AS max_hold
FROM {inbox_purge} WHERE scope = $1::int AND (page > 0 OR began <= clock_timestamp() - $2::bigint * interval '1 millisecond')
FOR UPDATE SKIP LOCKED`

	stepWalkSQL = `
UPDATE {inbox_purge} SET page = $2::bigint, began = CASE WHEN $3::boolean THEN clock_timestamp() ELSE began END
WHERE scope = $1::int`
)

func newWalk(b *Inbox, table string, scope func(context.Context) (int64, error), every, roundTime time.Duration, remove string, args func(int64) []any) *walk {
	return &walk{
		b: b, scope: scope, every: every, roundTime: roundTime, args: args, pages: firstPages,
		enter: b.in(enterWalkSQL), take: b.in(takeWalkSQL), step: b.in(stepWalkSQL), remove: b.in(remove),
		table: b.in(table),
	}
}

// walk takes rounds until there is none to take.
func (w *walk) walk(ctx context.Context) error {
	scope, err := w.scope(ctx)
	if err != nil {
		return err
	}
	if _, err := w.b.alone(ctx, w.enter, scope); err != nil {
		return err
	}
	for {
		if more, err := w.round(ctx, scope); !more || err != nil {
			return err
		}
	}
}

// round takes one round, and reports whether the walk goes on. It does not if
// another process is at it, or the next walk is not due.
func (w *walk) round(ctx context.Context, scope int64) (more bool, err error) {
	start := time.Now()
	t, err := w.b.begin(ctx)
	if err != nil {
		return false, err
	}
	defer t.rollback()
	var at struct {
		Page, Pages       int64
		SynchronousCommit string `db:"synchronous_commit"`
		MaxHold           string `db:"max_hold"`
	}
	id := strconv.FormatInt(scope, 10)
	err = t.tx.GetContext(ctx, &at, w.take, id, milliseconds(w.every), w.table, milliseconds(w.b.cfg.MaxHold))
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("find where the last round was: %w", err)
	}
	next := int64(1) // of a walk that begins
	if at.Page > 0 {
		from := at.Page - 1
		upto := from + w.pages
		if _, err := t.tx.ExecContext(ctx, w.remove, append([]any{page(from), page(upto)}, w.args(scope)...)...); err != nil {
			return false, fmt.Errorf("remove rows: %w", err)
		}
		if next = upto + 1; upto >= at.Pages {
			next = 0
		}
	} else if w.first != nil {
		if err := w.first(ctx, t, scope); err != nil {
			return false, err
		}
	}
	if _, err := t.tx.ExecContext(ctx, w.step, id, strconv.FormatInt(next, 10), strconv.FormatBool(at.Page == 0)); err != nil {
		return false, fmt.Errorf("write down where the round was: %w", err)
	}
	if err := t.commit(); err != nil {
		return false, fmt.Errorf("commit: %w", err)
	}
	if at.Page > 0 {
		w.pages = nextPages(w.pages, time.Since(start), w.roundTime)
	}
	return next > 0, nil
}

// nextPages returns how many pages the next round has, from how long the last one took.
func nextPages(pages int64, took, want time.Duration) int64 {
	switch {
	case took > want:
		pages /= 2
	case took < want/2:
		pages *= 2
	}
	return min(max(pages, leastPages), mostPages)
}

// page is the place of the first row of a page.
func page(n int64) string { return fmt.Sprintf("(%d,0)", min(n, math.MaxUint32)) }
