package inbox

import (
	"context"
	"encoding"
	"errors"
	"fmt"

	"github.com/jmoiron/sqlx"
)

// A DeadLetter is a message that is given up, as [Config.DeadLetter] gets it.
type DeadLetter struct {
	// Message is what was applied. Its Body may be what the dead letter has to carry.
	Message Message

	// Attempts is how many failures were charged to the message, the last one
	// included. 0 if it was never handled.
	Attempts int

	// Err says why: the last error of the handler, a [*CrashError], a [*ConflictError]
	// or an [*IdentityError].
	Err error
}

// Bytes is a [Message.Body] that is at hand.
type Bytes []byte

var _ encoding.BinaryMarshaler = Bytes(nil)

// MarshalBinary returns b.
func (b Bytes) MarshalBinary() ([]byte, error) { return b, nil }

const (
	deadSQL   = `UPDATE {inbox} SET dead = true WHERE key = ANY ($1::uuid[])`
	parkedSQL = `SELECT EXISTS (SELECT FROM {inbox_parked} WHERE key = $1::uuid AND dead)`
	reviveSQL = `DELETE FROM {inbox} WHERE key = $1::uuid AND dead`

	letterSavepoint = `SAVEPOINT onceward_letter`
	letterWritten   = `RELEASE SAVEPOINT onceward_letter`
	letterUndone    = `ROLLBACK TO SAVEPOINT onceward_letter`
)

// bury has the dead letters written of those that are at the end of their attempts, and
// keeps the rows of their claims.
func (b *Inbox) bury(ctx context.Context, t *txn, scope int64, charged []*entry) (dead []*entry, err error) {
	var parked []*entry
	for _, e := range charged {
		if !e.lost && e.attempts < b.cfg.MaxAttempts && weigh(e.result.Err) != final {
			continue
		}
		if err := b.letter(ctx, t, e, e.result.Err); err != nil {
			return nil, err
		}
		if e.dead != nil {
			dead = append(dead, e)
		}
		if e.dead != nil && b.cfg.ParkKey && len(e.fences) > 0 {
			parked = append(parked, e)
		}
	}
	if len(dead) == 0 {
		return nil, nil
	}
	if err := b.store(ctx, t, scope, parked, true); err != nil {
		return nil, err
	}
	if _, err := t.tx.ExecContext(ctx, b.sql.dead, keysOf(dead)); err != nil {
		return nil, fmt.Errorf("mark the dead: %w", err)
	}
	return dead, nil
}

// letter hands the dead letter of a message over, behind a savepoint. Where it is refused
// the message is not dead: it stays failed, and the next failure tries again.
func (b *Inbox) letter(ctx context.Context, t *txn, e *entry, why error) error {
	d := DeadLetter{*e.msg, e.attempts, why}
	if b.cfg.ParkKey && len(e.fences) > 0 {
		if _, err := e.body(); err != nil {
			e.result = Result{Outcome: Failed, Err: fmt.Errorf("%w (and it cannot be parked: %w)", why, err)}
			return nil
		}
	}
	if b.cfg.DeadLetter != nil {
		if _, err := t.tx.ExecContext(ctx, letterSavepoint); err != nil {
			return fmt.Errorf("savepoint: %w", err)
		}
		err := protect(func() error { return b.cfg.DeadLetter(ctx, t.tx, d) })
		if err == nil {
			if _, err = t.tx.ExecContext(ctx, letterWritten); state(err) == inFailedTransaction {
				err = fmt.Errorf("%w: %w", ErrSwallowed, err)
			}
		}
		if err != nil {
			if _, undone := t.tx.ExecContext(ctx, letterUndone); ctx.Err() != nil || collided(err) || undone != nil {
				return fmt.Errorf("dead letter of message %q: %w", e.id, errors.Join(err, undone))
			}
			b.cfg.Logger.Error("inbox: dead letter refused, its message stays failed", "id", e.id, "attempts", e.attempts, "failure", why, "error", err)
			e.result = Result{Outcome: Failed, Err: fmt.Errorf("%w (and its dead letter was refused: %w)", why, err)}
			return nil
		}
	}
	e.dead = &DeadError{e.id, e.attempts, why}
	return nil
}

// died gives the result to those whose dead letters are committed.
func (b *Inbox) died(es []*entry) {
	for _, e := range es {
		if e.dead != nil {
			b.cfg.Logger.Error("inbox: message given up", "id", e.id, "attempts", e.dead.Attempts, "error", e.dead.Err)
			e.result = Result{Outcome: Dead, Err: e.dead}
		}
	}
}

// Bury gives a message up, because of why: its dead letter is written under the claim, so
// once, and later copies are duplicates. It is for those who count attempts themselves,
// and for messages that cannot be handled at all: one without a usable ID is claimed by
// its [Message.Position].
//
// The outcome is Dead; Duplicate if the message was decided before; Busy, Stale or Again
// as for [Inbox.Apply]; or Failed if the dead letter was refused, or there is neither an
// ID nor a position.
func (b *Inbox) Bury(ctx context.Context, m Message, why error) Result {
	e, err := b.newEntry(0, &m)
	if err == nil {
		err = b.checkBody(e)
	}
	if err != nil {
		if e = b.unnamed(0, &m); e == nil {
			return Result{Outcome: Failed, Err: err}
		}
	}
	scope, err := b.scopeID(ctx)
	if err != nil {
		return e.again(gaveUp(ctx, err))
	}
	b.giveUp(ctx, scope, e, why)
	return e.result
}

// giveUp claims a message in order to bury it.
func (b *Inbox) giveUp(ctx context.Context, scope int64, e *entry, why error) {
	e.result = Result{}
	b.apply(ctx, scope, []*entry{e}, func(s *strider, fresh []*entry) error {
		e.lost, e.result = true, Result{Outcome: Failed, Err: why}
		return nil
	})
}

// buryAt buries a message by its position: its ID belongs to another, or it has none.
func (b *Inbox) buryAt(ctx context.Context, scope int64, e *entry) {
	why := e.result
	at := b.unnamed(e.index, e.msg)
	at.id, at.fences = e.id, e.fences
	b.giveUp(ctx, scope, at, why.Err)
	if at.result.Outcome.Decided() {
		e.result = at.result
	} else if err := at.result.Err; err != nil && at.result.Outcome != Failed {
		b.cfg.Logger.Warn("inbox: message not buried, it has to come again", "id", e.id, "failure", why.Err, "error", err)
	}
}

// buryUnnamed buries the messages that have no usable identity but a position.
func (b *Inbox) buryUnnamed(ctx context.Context, ms []Message, results []Result) {
	if b.cfg.MaxAttempts == 0 {
		return
	}
	for i, r := range results {
		if _, ok := errors.AsType[*IdentityError](r.Err); !ok || r.Outcome != Failed {
			continue
		}
		if e := b.unnamed(i, &ms[i]); e != nil {
			if scope, err := b.scopeID(ctx); err == nil {
				e.result = r
				b.buryAt(ctx, scope, e)
				results[i] = e.result
			}
		}
	}
}

// unnamed returns the entry of a message that is known by its position alone, or nil if
// it has none.
func (b *Inbox) unnamed(index int, m *Message) *entry {
	p := m.Position
	if checkPosition(p) != nil || p == nil {
		return nil
	}
	at := fmt.Sprintf("%x/%d/%d", p.Topic, p.Partition, p.Offset)
	return &entry{
		index: index, msg: m, id: at, position: p,
		key: hash("onceward inbox position", b.cfg.Tenant, b.cfg.Consumer, at),
	}
}

// Redrive applies a message that is dead once more: in one transaction its row is
// deleted, and it is claimed and handled like any other. If that fails, it stays dead, and
// nothing is charged. A message that is not dead is applied as by [Inbox.Apply], so it is
// a Duplicate if it was decided. What is compared with [Message.Digest] is not the dead
// one's: what is mended may differ. Nor is [Message.Position], which may be marked.
//
// A dead letter that others are parked behind needs their fence. They stay parked: see
// [Inbox.Unpark].
func (b *Inbox) Redrive(ctx context.Context, m Message, fn func(ctx context.Context, tx *sqlx.Tx) error) Result {
	m.Position = nil
	e, err := b.newEntry(0, &m)
	if err != nil {
		return Result{Outcome: Failed, Err: err}
	}
	scope, err := b.scopeID(ctx)
	if err != nil {
		return e.again(gaveUp(ctx, err))
	}
	e.redriven = true
	b.apply(ctx, scope, []*entry{e}, each(func(ctx context.Context, tx *sqlx.Tx, _ int) error { return fn(ctx, tx) }))
	return e.result
}

// reclaim claims a dead message that is to be redriven, in the transaction in which the
// claim has found that it is decided. First the claim, then this: so the fences come
// before the row, as in every transaction.
func (b *Inbox) reclaim(ctx context.Context, t *txn, scope int64, e *entry, fresh []*entry) ([]*entry, error) {
	if o := e.result.Outcome; o != Duplicate && o != Conflict {
		return fresh, nil
	}
	r, err := t.tx.ExecContext(ctx, b.sql.revive, e.key.text())
	if err != nil {
		return nil, fmt.Errorf("revive: %w", err)
	}
	if n, err := r.RowsAffected(); err != nil || n == 0 {
		return nil, err
	}
	e.result = Result{}
	if err := b.unparkDead(ctx, t, scope, e); err != nil || e.result.Outcome != 0 {
		return nil, err
	}
	return b.claim(ctx, t, scope, []*entry{e})
}

// Revive takes back that a message is dead: the next delivery is handled, with all its
// attempts before it. It reports whether the message was dead. Where no delivery is to be
// expected, see [Inbox.Redrive]. It returns [ErrKeyParked] if others wait behind it.
func (b *Inbox) Revive(ctx context.Context, id string) (bool, error) {
	e, err := b.newEntry(0, &Message{ID: id})
	if err != nil {
		return false, err
	}
	var parked bool
	if err := b.getAlone(ctx, &parked, b.in(parkedSQL), e.key.text()); err != nil {
		return false, fmt.Errorf("inbox: revive message %q: %w", id, err)
	}
	if parked {
		return false, fmt.Errorf("inbox: revive message %q: %w", id, ErrKeyParked)
	}
	n, err := b.alone(ctx, b.sql.revive, e.key.text())
	if err != nil {
		return false, fmt.Errorf("inbox: revive message %q: %w", id, err)
	}
	return n > 0, nil
}
