package inbox

import (
	"context"
	"fmt"
)

// DefaultMaxStarts is the default of [Config.MaxStarts].
const DefaultMaxStarts = 3

// A CrashError says that a message was begun several times by processes that did not live
// to see its end.
type CrashError struct {
	ID     string
	Starts int // whose end nobody saw
}

func (e *CrashError) Error() string {
	return fmt.Sprintf("inbox: message %q was begun %d times, and its process died each time", e.ID, e.Starts)
}
func (e *CrashError) Permanent() bool { return true }

const (
	// startSQL counts a start before the handler runs. Out: failures that were charged,
	// and starts whose end nobody saw, this one included.
	startSQL = `
INSERT INTO {inbox_attempt} AS a (key, scope, id, attempts, started, last) VALUES ($1::uuid, $2::int, $3::text, 0, 1, '')
ON CONFLICT (key) DO UPDATE SET started = a.started + 1, at = now()
RETURNING attempts, started`

	// endSQL takes back a start. A row that says nothing any more goes.
	endSQL = `
WITH d AS (DELETE FROM {inbox_attempt} WHERE key = $1::uuid AND attempts = 0 AND started <= 1)
UPDATE {inbox_attempt} SET started = started - 1, at = now()
WHERE key = $1::uuid AND started > 0 AND NOT (attempts = 0 AND started <= 1)`
)

// applySuspect applies a message that may have killed its process: alone, with its start
// written down before, in a transaction of its own. However it ends, this is taken back:
// by its success with the effect, by its failure with the charge, else by reckon. What is
// left over is the starts that killed the process.
func (b *Inbox) applySuspect(ctx context.Context, scope int64, e *entry, fn runner) {
	starts, err := b.start(ctx, scope, e)
	switch {
	case state(err) == lockNotAvailable:
		e.result = b.busy(e, "")
	case err != nil:
		e.result = e.again(gaveUp(ctx, err))
	case e.result.Outcome != 0:
	case starts > b.cfg.MaxStarts:
		b.giveUp(ctx, scope, e, &CrashError{e.id, starts - 1})
	default:
		b.apply(ctx, scope, []*entry{e}, fn)
	}
}

// start writes down that a message is begun, unless it is decided. Its claim is given
// back: it is for the transaction of the handler.
func (b *Inbox) start(ctx context.Context, scope int64, e *entry) (starts int, err error) {
	t, err := b.begin(ctx)
	if err != nil {
		return 0, err
	}
	defer t.rollback()
	fresh, err := b.claim(ctx, t, scope, []*entry{e})
	if err != nil || len(fresh) == 0 {
		return 0, err
	}
	if err := t.tx.QueryRowxContext(ctx, b.sql.start, e.key.text(), scope, readable(e.id)).Scan(&e.attempts, &starts); err != nil {
		return 0, fmt.Errorf("write down the start: %w", err)
	}
	if err := b.unclaim(ctx, t, fresh); err != nil {
		return 0, err
	}
	if err := t.commit(); err != nil {
		// Rather too few than too many: a message is not to die of lost answers.
		e.begun = t.unknown(err)
		return 0, fmt.Errorf("commit: %w", err)
	}
	e.begun = true
	return starts, nil
}

// ended takes back the start of a message whose end was not written down with its effect
// or its failure.
func (b *Inbox) ended(ctx context.Context, e *entry) {
	ctx, cancel := b.afterwards(ctx)
	defer cancel()
	if _, err := b.alone(ctx, b.sql.end, e.key.text()); err != nil {
		b.cfg.Logger.Warn("inbox: end of a suspect not written down, its start counts as one that killed its process", "id", e.id, "error", err)
	}
}
