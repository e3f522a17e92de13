package inbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

const (
	// chargeSQL counts a failure of each message, and takes back its start if it was
	// begun as a suspect. Out: the failures that were charged so far. Whoever writes to
	// inbox_attempt has claimed the message, so nobody waits here.
	chargeSQL = `
INSERT INTO {inbox_attempt} AS a (key, scope, id, attempts, started, last)
SELECT t.key, $1::int, t.id, 1, 0, t.last FROM unnest($2::uuid[], $3::text[], $4::text[]) AS t(key, id, last)
ORDER BY t.key
ON CONFLICT (key) DO UPDATE SET attempts = a.attempts + 1, started = greatest(a.started - $5::int, 0), last = EXCLUDED.last, at = now()
RETURNING a.key::text, a.attempts`

	// forgiveSQL forgets the failures of messages that are decided: those of which the row
	// is there. It is not if the handler has ended the transaction.
	forgiveSQL = `
DELETE FROM {inbox_attempt}
WHERE key = ANY ($1::uuid[]) AND key = ANY (ARRAY(SELECT i.key FROM {inbox} i WHERE i.key = ANY ($1::uuid[])))`
)

// account writes down, in the transaction of the messages, how they ended: those that
// failed are charged; who is at the end of its attempts is dead, its row stays, and the
// others give theirs back. Who was kept loses the memory of earlier failures. It
// reports whether there is anything to commit.
func (b *Inbox) account(ctx context.Context, t *txn, scope int64, kept, failed []*entry) (worth bool, err error) {
	var charged, gone []*entry
	for _, e := range failed {
		if e.lost || e.forced || b.cfg.MaxAttempts > 0 && e.result.Outcome == Failed && weigh(e.result.Err) >= guilty {
			charged = append(charged, e)
		}
	}
	for _, e := range kept {
		if e.noted {
			gone = append(gone, e)
		}
	}
	if len(kept)+len(charged) == 0 {
		return false, nil
	}
	if err := b.charge(ctx, t, scope, charged); err != nil {
		return false, err
	}
	dead, err := b.bury(ctx, t, scope, charged)
	if err != nil {
		return false, err
	}
	var back []*entry
	for _, e := range failed {
		if e.dead == nil {
			back = append(back, e)
		}
	}
	if len(back) > 0 {
		if err := b.unclaim(ctx, t, back); err != nil {
			return false, err
		}
	}
	return true, b.forgive(ctx, t, append(gone, dead...))
}

// forgive forgets the failures of messages that are decided.
func (b *Inbox) forgive(ctx context.Context, t *txn, es []*entry) error {
	if len(es) == 0 {
		return nil
	}
	if _, err := t.tx.ExecContext(ctx, b.sql.forgive, keysOf(es)); err != nil {
		return fmt.Errorf("forget attempts: %w", err)
	}
	for _, e := range es {
		e.noted = false
	}
	return nil
}

// charge counts one failure more of each message.
func (b *Inbox) charge(ctx context.Context, t *txn, scope int64, es []*entry) error {
	es = slices.DeleteFunc(slices.Clone(es), func(e *entry) bool { return e.lost })
	if len(es) == 0 {
		return nil
	}
	var ids, lasts array
	byKey := make(map[uuid]*entry, len(es))
	begun := 0
	for _, e := range es {
		byKey[e.key] = e
		ids.text(readable(e.id))
		lasts.text(cut(e.result.Err.Error(), maxLast))
		if e.begun { // then it is alone
			begun = 1
		}
	}
	rows, err := t.tx.QueryContext(ctx, b.sql.charge, scope, keysOf(es), ids.String(), lasts.String(), begun)
	if err != nil {
		return fmt.Errorf("charge attempts: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		var attempts int
		if err := rows.Scan(&name, &attempts); err != nil {
			return fmt.Errorf("charge attempts: %w", err)
		}
		key, err := parseUUID(name)
		if err != nil {
			return err
		}
		byKey[key].attempts, byKey[key].charged = attempts, true
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("charge attempts: %w", err)
	}
	return nil
}

// dropAttemptsSQL removes what is known of messages that never came again, and of those
// that were charged to one while another waited with its claim: what was written during
// the wait cannot be seen by the claim. A row that somebody is at is left for the next
// time.
const dropAttemptsSQL = `
DELETE FROM {inbox_attempt} WHERE key = ANY (ARRAY(
  SELECT a.key FROM {inbox_attempt} a WHERE a.scope = $1::int AND a.at < now() - $2::bigint * interval '1 millisecond'
  LIMIT 10000 FOR UPDATE OF a SKIP LOCKED))`

// dropAttempts is the purge of inbox_attempt, a small table.
func (b *Inbox) dropAttempts(ctx context.Context, t *txn, scope int64, cfg PurgeConfig) error {
	if _, err := t.tx.ExecContext(ctx, b.in(dropAttemptsSQL), scope, milliseconds(cfg.unmarked())); err != nil {
		return fmt.Errorf("drop old attempts: %w", err)
	}
	return nil
}

// unaccount takes back what account has set, since nothing of it was committed, or nobody
// knows. Then the accounts are not written once more: they might count twice.
func unaccount(es []*entry, unknown bool) {
	for _, e := range es {
		e.charged, e.dead = e.charged && unknown, nil
		if e.lost {
			e.result = Result{}
		}
	}
}

// MaxUncharged is how many failures in a row may be nobody's fault. Further ones of the
// same message in the same process are charged all the same: a handler that breaks the
// connection each time, or waits for a lock that it never gets, would go on for ever.
const MaxUncharged = 20

// reckon charges what could not be charged in the transaction of the message, since that
// was rolled back: each in a transaction of its own, under a claim. If that does not
// succeed, nobody is charged.
func (b *Inbox) reckon(ctx context.Context, scope int64, es []*entry) {
	if b.cfg.MaxAttempts == 0 {
		return
	}
	for _, e := range es {
		failed := e.result.Outcome == Failed
		blame := innocent
		if failed {
			blame = weigh(e.result.Err)
		}
		switch {
		case e.charged, e.result.Outcome.Decided():
			b.streaks.end(e.key)
		case blame >= guilty:
			b.streaks.end(e.key)
			b.apart(ctx, scope, e)
		case (failed || e.blamed) && blame != unasked && b.streaks.add(e.key) > MaxUncharged:
			if !failed {
				e.result = Result{Outcome: Failed, Err: fmt.Errorf("inbox: handle message %q: more than %d failures in a row that were nobody's fault: %w", e.id, MaxUncharged, e.result.Err)}
			}
			e.forced = true
			b.apart(ctx, scope, e)
		case e.result.Outcome == Conflict && e.position != nil:
			b.buryAt(ctx, scope, e)
		}
		if e.begun && !e.charged && e.result.Outcome != Applied && e.result.Outcome != Skipped && e.result.Outcome != Dead {
			b.ended(ctx, e)
		}
	}
}

// chargeWithin bounds the transaction that charges a message, which does not end with the
// context of the call: it may be the end of that context that is charged.
const chargeWithin = 5 * time.Second

// afterwards returns the context of what is written down about a message once its own
// transaction is over.
func (b *Inbox) afterwards(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), min(chargeWithin, b.cfg.CommitTimeout))
}

// apart charges a message that has failed, in a transaction of its own. If somebody else
// has decided it meanwhile, that is its result.
func (b *Inbox) apart(ctx context.Context, scope int64, e *entry) {
	ctx, cancel := b.afterwards(ctx)
	defer cancel()
	failure := e.result
	e.result = Result{}
	err := b.transact(ctx, scope, []*entry{e}, func(*strider, []*entry) error {
		e.result = failure
		return nil
	})
	if err != nil {
		b.cfg.Logger.Warn("inbox: failure of a message not charged", "id", e.id, "failure", failure.Err, "error", err)
	}
	if o := e.result.Outcome; o != Failed && !o.Decided() {
		e.result = failure
	}
}

// A blame says whose fault the failure of a handler was.
type blame int

const (
	unasked  blame = iota // the handler asks for something else than another try
	innocent              // nobody's
	guilty                // the message's: an attempt
	final                 // the message's, and it can never succeed
)

// weigh says whose fault the error of a failed message was.
func weigh(err error) blame {
	for _, own := range []error{ErrIdle, ErrEnded, ErrSwallowed} {
		if errors.Is(err, own) {
			return guilty
		}
	}
	switch classOf(err) {
	case classPermanent:
		return final
	case classUncharged:
		return innocent
	case classStop:
		return unasked
	}
	// What the server says of itself. Errors of the handler's other connections have no
	// SQLSTATE, and are its own affair.
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || collided(err) ||
		state(err) != "" && state(err) != idleInTransaction && disconnected(err) {
		return innocent
	}
	return guilty
}

func keysOf(es []*entry) string {
	var keys array
	for _, e := range es {
		keys.uuid(e.key)
	}
	return keys.String()
}
