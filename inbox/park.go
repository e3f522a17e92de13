package inbox

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jmoiron/sqlx"
)

// ErrKeyParked is matched if a dead letter cannot go back to where it came from, since
// others wait behind it: see [Inbox.Unpark].
var ErrKeyParked = errors.New("inbox: messages are parked behind it")

// A BehindError says that the message waits behind a dead letter of its lock. It is
// stored, so it need not be delivered again: [Inbox.Unpark] hands it out.
type BehindError struct {
	ID       string
	Resource string
}

func (e *BehindError) Error() string {
	return fmt.Sprintf("inbox: message %q is parked behind a dead letter of %q", e.ID, e.Resource)
}

// Skipped says that the message is decided: nothing is left to do for who delivers it.
func (e *BehindError) Skipped() bool { return true }

// All of these run while the fences of the resources are locked.
const (
	waitedForSQL = `SELECT DISTINCT resource::text FROM {inbox_parked} WHERE scope = $1::int AND resource = ANY ($2::uuid[])`

	parkSQL = `
INSERT INTO {inbox_parked} (scope, resource, key, dead, name, id, message)
SELECT $1::int, t.resource, t.key, $2::boolean, t.name, t.id, t.message
FROM unnest($3::uuid[], $4::uuid[], $5::bytea[], $6::text[], $7::bytea[]) WITH ORDINALITY AS t(resource, key, name, id, message, ord)
ORDER BY t.ord`

	closeSQL = `UPDATE {inbox_fence} SET parked = true WHERE resource = ANY ($1::uuid[]) AND NOT parked`

	// openSQL looks at all scopes: the fence is everybody's.
	openSQL = `
UPDATE {inbox_fence} SET parked = false
WHERE resource = $1::uuid AND parked AND NOT EXISTS (SELECT FROM {inbox_parked} WHERE resource = $1::uuid)`
)

// park stores those of the messages that have to wait behind a dead letter. They are held
// back; the rest may run. A message waits for its first fence alone, which is that of its
// lane.
func (b *Inbox) park(ctx context.Context, t *txn, scope int64, fresh []*entry) (held, rest []*entry, err error) {
	waits := func(e *entry) bool { return e.noted && len(e.fences) > 0 && !e.lost && !e.redriven }
	if !slices.ContainsFunc(fresh, waits) {
		return nil, fresh, nil
	}
	var resources array
	for _, e := range fresh {
		if waits(e) {
			resources.uuid(e.fences[0].resource)
		}
	}
	var names []string
	if err := t.tx.SelectContext(ctx, &names, b.in(waitedForSQL), scope, resources.String()); err != nil {
		return nil, nil, fmt.Errorf("look for what is parked: %w", err)
	}
	closed, err := uuidSet(names)
	if err != nil {
		return nil, nil, err
	}
	var parked []*entry
	for _, e := range fresh {
		if !waits(e) || !closed[e.fences[0].resource] {
			rest = append(rest, e)
			continue
		}
		held = append(held, e)
		if _, err := e.body(); err != nil {
			e.result = e.failed(err)
			continue
		}
		e.run = run{result: Result{Outcome: Parked, Err: &BehindError{e.id, e.fences[0].name}}}
		parked = append(parked, e)
	}
	if err := b.store(ctx, t, scope, parked, false); err != nil {
		return nil, nil, err
	}
	// Here and not with those that run: their last statement may take COMMIT along.
	return held, rest, b.forgive(ctx, t, parked)
}

// store adds messages to what is parked.
func (b *Inbox) store(ctx context.Context, t *txn, scope int64, es []*entry, dead bool) error {
	if len(es) == 0 {
		return nil
	}
	var resources, keys, names, ids, messages array
	for _, e := range es {
		body, err := e.body()
		if err != nil {
			return err
		}
		resources.uuid(e.fences[0].resource)
		keys.uuid(e.key)
		names.bytes([]byte(e.fences[0].name))
		ids.text(readable(e.id))
		messages.bytes(body)
	}
	if _, err := t.tx.ExecContext(ctx, b.in(parkSQL), scope, dead, resources.String(), keys.String(), names.String(), ids.String(), messages.String()); err != nil {
		return fmt.Errorf("park: %w", err)
	}
	if _, err := t.tx.ExecContext(ctx, b.in(closeSQL), resources.String()); err != nil {
		return fmt.Errorf("park: %w", err)
	}
	return nil
}

// body returns what is stored of a message.
func (e *entry) body() (body []byte, err error) {
	if e.msg.Body == nil {
		return nil, &IdentityError{"Body", "is nil, must be set for messages that may be parked"}
	}
	err = protect(func() error { body, err = e.msg.Body.MarshalBinary(); return err })
	if err != nil {
		return nil, fmt.Errorf("marshal body of message %q: %w", e.id, err)
	}
	return body, nil
}

// bytes adds a bytea.
func (a *array) bytes(b []byte) { a.text(`\x` + hex.EncodeToString(b)) }

// checkBody finds out that a message cannot be parked before it has to be.
func (b *Inbox) checkBody(e *entry) error {
	if b.cfg.ParkKey && len(e.fences) > 0 && e.msg.Body == nil {
		return &IdentityError{"Body", "is nil, must be set where ParkKey is on"}
	}
	return nil
}

// A ParkedKey is a lock with messages that wait behind a dead letter.
type ParkedKey struct {
	Resource string // of [Fence]
	Messages int    // the dead letter included
	Since    time.Time
}

const parkedKeysSQL = `
SELECT name, count(*), min(at) FROM {inbox_parked} WHERE scope = $1::int GROUP BY resource, name ORDER BY min(at), name`

// ParkedKeys returns the locks that have messages of this scope parked, the oldest first.
func (b *Inbox) ParkedKeys(ctx context.Context) ([]ParkedKey, error) {
	scope, err := b.scopeID(ctx)
	if err != nil {
		return nil, fmt.Errorf("inbox: parked keys: %w", err)
	}
	statement, err := inline(b.in(parkedKeysSQL), scope)
	if err != nil {
		return nil, fmt.Errorf("inbox: parked keys: %w", err)
	}
	rows, err := b.db.QueryContext(ctx, statement)
	if err != nil {
		return nil, fmt.Errorf("inbox: parked keys: %w", err)
	}
	defer rows.Close()
	var keys []ParkedKey
	for rows.Next() {
		var name []byte
		var k ParkedKey
		if err := rows.Scan(&name, &k.Messages, &k.Since); err != nil {
			return nil, fmt.Errorf("inbox: parked keys: %w", err)
		}
		k.Resource = string(name)
		keys = append(keys, k)
	}
	return keys, rows.Err()
}

// A ParkedMessage is a message that waits behind a dead letter, or that dead letter.
type ParkedMessage struct {
	ID   string // its beginning, for people: what is not printable ASCII is escaped
	Dead bool   // it is what the others wait for
	Body []byte // what [Message.Body] gave
	At   time.Time
}

const (
	// lockFenceSQL takes the fence of a lock as the claim does, or whatever its token is
	// if none is given. Out: the token that is stored.
	lockFenceSQL = `
WITH s AS MATERIALIZED (
  SELECT ` + limitsSQL + `
)
UPDATE {inbox_fence} AS g SET token = greatest(g.token, $5::bigint) FROM s WHERE g.resource = $4::uuid RETURNING g.token`

	headSQL = `
SELECT seq, key::text, dead, id, message, at FROM {inbox_parked}
WHERE scope = $1::int AND resource = $2::uuid ORDER BY seq LIMIT 1`

	unparkSQL   = `DELETE FROM {inbox_parked} WHERE scope = $1::int AND resource = $2::uuid AND seq = $3::bigint`
	undeadSQL   = `UPDATE {inbox} SET dead = false WHERE key = $1::uuid`
	undeadedSQL = `DELETE FROM {inbox_parked} WHERE scope = $1::int AND key = $2::uuid AND dead RETURNING resource::text, name`
)

// Unpark handles what is parked behind dead letters of a lock, in order, the dead letter
// first, each message in a transaction of its own that holds the fence f. It returns how
// many were handled, when there are no more: from then on messages of the lock are
// handled as they come. Until then they are parked behind those.
//
// fn is called as by [Inbox.Apply]. An error with the method Skipped() bool that answers
// true drops the message. Any other error is the end: that message and those behind it
// stay parked, and nothing is charged. It matches [ErrUnknown] if the answer to COMMIT was
// lost, and is a [*StaleError] if a greater token was seen. With f.Token 0 the fence is
// held whatever its token is, which keeps everybody away whose claim looks at it.
func (b *Inbox) Unpark(ctx context.Context, f Fence, fn func(ctx context.Context, tx *sqlx.Tx, m ParkedMessage) error) (handled int, err error) {
	if err := checkName("Fences[0].Resource", f.Resource); err != nil {
		return 0, err
	}
	if f.Token < 0 {
		return 0, &IdentityError{"Fences[0].Token", fmt.Sprintf("is %d, must not be negative", f.Token)}
	}
	scope, err := b.scopeID(ctx)
	if err != nil {
		return 0, fmt.Errorf("inbox: unpark %q: %w", f.Resource, gaveUp(ctx, err))
	}
	for ; ; handled++ {
		more, err := b.unparkOne(ctx, scope, f, fn)
		if err != nil {
			return handled, fmt.Errorf("inbox: unpark %q: %w", f.Resource, gaveUp(ctx, err))
		}
		if !more {
			return handled, nil
		}
	}
}

// unparkOne handles the first message of what is parked, and reports whether there was one.
func (b *Inbox) unparkOne(ctx context.Context, scope int64, f Fence, fn func(ctx context.Context, tx *sqlx.Tx, m ParkedMessage) error) (bool, error) {
	t, err := b.begin(ctx)
	if err != nil {
		return false, err
	}
	defer t.rollback()
	resource := resourceKey(f.Resource)
	var tokens []int64
	if err := t.tx.SelectContext(ctx, &tokens, b.in(lockFenceSQL), b.limits[0], b.limits[1], b.limits[2],
		resource.text(), f.Token); err != nil || len(tokens) == 0 {
		return false, err
	}
	if f.Token > 0 && tokens[0] > f.Token {
		return false, &StaleError{Resource: f.Resource, Token: f.Token, Stored: tokens[0]}
	}
	var seq int64
	var key string
	var m ParkedMessage
	rows, err := t.tx.QueryContext(ctx, b.in(headSQL), scope, resource.text())
	if err != nil {
		return false, err
	}
	defer rows.Close()
	if !rows.Next() {
		return false, rows.Err()
	}
	if err := errors.Join(rows.Scan(&seq, &key, &m.Dead, &m.ID, &m.Body, &m.At), rows.Close()); err != nil {
		return false, err
	}
	start := time.Now()
	err = protect(func() error { return fn(ctx, t.tx, m) })
	dropped := skipped(err)
	if err != nil && !dropped {
		if time.Since(start) >= b.cfg.MaxHold {
			err = fmt.Errorf("%w (MaxHold is %v): %w", ErrIdle, b.cfg.MaxHold, err)
		}
		return false, fmt.Errorf("handle message %q: %w", m.ID, err)
	}
	if err := b.unparked(ctx, t, scope, resource, seq, key, m.Dead && !dropped); err != nil {
		return false, fmt.Errorf("handle message %q: %w", m.ID, err)
	}
	if ctx.Err() != nil { // success under a dead context may have written nothing
		return false, context.Cause(ctx)
	}
	if err := t.commit(); err != nil {
		if t.unknown(err) {
			err = fmt.Errorf("%w: %w", ErrUnknown, err)
		}
		return false, fmt.Errorf("handle message %q: commit: %w", m.ID, err)
	}
	return true, nil
}

// unparked takes a message that was handled out of what is parked, and opens the lock if it
// was the last one.
func (b *Inbox) unparked(ctx context.Context, t *txn, scope int64, resource uuid, seq int64, key string, undead bool) error {
	_, err := t.tx.ExecContext(ctx, b.in(unparkSQL), scope, resource.text(), seq)
	if state(err) == inFailedTransaction {
		return fmt.Errorf("%w: %w", ErrSwallowed, err)
	}
	if err == nil && undead {
		_, err = t.tx.ExecContext(ctx, b.in(undeadSQL), key)
	}
	if err == nil {
		_, err = t.tx.ExecContext(ctx, b.in(openSQL), resource.text())
	}
	return err
}

// unparkDead takes a dead letter that is redriven out of what is parked, if it is there. It
// fails if its fence is not held: the others could come in between.
func (b *Inbox) unparkDead(ctx context.Context, t *txn, scope int64, e *entry) error {
	rows, err := t.tx.QueryContext(ctx, b.in(undeadedSQL), scope, e.key.text())
	if err != nil {
		return fmt.Errorf("unpark: %w", err)
	}
	defer rows.Close()
	if !rows.Next() {
		return rows.Err()
	}
	var text string
	var name []byte
	if err := errors.Join(rows.Scan(&text, &name), rows.Close()); err != nil {
		return fmt.Errorf("unpark: %w", err)
	}
	resource, err := parseUUID(text)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(e.fences, func(f fence) bool { return f.resource == resource }) {
		e.result = Result{Outcome: Failed, Err: fmt.Errorf("inbox: messages are parked behind %q: give it the fence of %q", e.id, name)}
		return nil
	}
	if _, err := t.tx.ExecContext(ctx, b.in(openSQL), resource.text()); err != nil {
		return fmt.Errorf("unpark: %w", err)
	}
	return nil
}
