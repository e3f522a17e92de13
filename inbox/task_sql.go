package inbox

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/onceward/onceward/watchdog"
)

// Leases are compared with clock_timestamp(): now() is the time at which a
// transaction began, from before it waited for its locks.
const (
	findTaskSQL = `
SELECT state, lease_until > clock_timestamp() AS running, starts,
  ceil(extract(epoch FROM lease_until - clock_timestamp()) * 1000)::bigint AS milliseconds
FROM {inbox_task} WHERE key = $1::uuid`

	startTaskSQL = `
INSERT INTO {inbox_task} AS t (key, scope, id, fingerprint, topic, part, off, owner, token, lease_until, starts, state)
VALUES ($1::uuid, $2::int, $3::text, $4::uuid, $5::uuid, $6::int, $7::bigint, $8::uuid, $9::bigint,
  clock_timestamp() + $10::bigint * interval '1 millisecond', 1, 'running')
ON CONFLICT (key) DO UPDATE SET owner = EXCLUDED.owner, token = EXCLUDED.token, lease_until = EXCLUDED.lease_until,
  starts = t.starts + 1, state = 'running'
RETURNING starts`

	parkTaskSQL = `UPDATE {inbox_task} SET state = 'parked' WHERE key = $1::uuid`

	renewTaskSQL = `
UPDATE {inbox_task} AS t SET lease_until = clock_timestamp() + $3::bigint * interval '1 millisecond'
FROM unnest($1::uuid[], $2::uuid[]) AS u(key, owner)
WHERE t.key = u.key AND t.owner = u.owner AND t.state = 'running'
RETURNING t.key::text`

	// The row moves in one statement. A late completion by the owner of a task that
	// was parked meanwhile is welcome: it knows what nobody else does.
	finishTaskSQL = `
WITH d AS (
  DELETE FROM {inbox_task} WHERE key = $1::uuid AND owner = $2::uuid AND token = $3::bigint
  RETURNING key, scope, id, fingerprint, topic, part, off
)
INSERT INTO {inbox} (key, scope, id, fingerprint, topic, part, off)
SELECT key, scope, id, fingerprint, topic, part, off FROM d ON CONFLICT (key) DO NOTHING`

	dropTaskSQL   = `DELETE FROM {inbox_task} WHERE key = $1::uuid AND owner = $2::uuid AND token = $3::bigint AND state = 'running'`
	expireTaskSQL = `UPDATE {inbox_task} SET lease_until = clock_timestamp() WHERE key = $1::uuid AND owner = $2::uuid AND token = $3::bigint AND state = 'running'`

	resolveDoneSQL = `
WITH d AS (
  DELETE FROM {inbox_task} WHERE key = $1::uuid AND state = 'parked'
  RETURNING key, scope, id, fingerprint, topic, part, off
)
INSERT INTO {inbox} (key, scope, id, fingerprint, topic, part, off)
SELECT key, scope, id, fingerprint, topic, part, off FROM d ON CONFLICT (key) DO NOTHING`

	resolveUndoneSQL = `DELETE FROM {inbox_task} WHERE key = $1::uuid AND state = 'parked'`
)

type taskStatements struct {
	find, start, park, renew, finish, drop, expire, done, undone string
}

func newTaskStatements(n names) taskStatements {
	in := n.in
	return taskStatements{
		in(findTaskSQL), in(startTaskSQL), in(parkTaskSQL), in(renewTaskSQL), in(finishTaskSQL),
		in(dropTaskSQL), in(expireTaskSQL), in(resolveDoneSQL), in(resolveUndoneSQL),
	}
}

// start writes down that the task is begun, unless e gets another result. It reports
// whether the task was taken over from a try of unknown fate.
//
// The claim of the inbox tells duplicates, conflicts and stale fences apart, and
// keeps everybody else away from the key until COMMIT. Its row is given back: the
// message is not decided yet.
func (w *work) start(ctx context.Context) (taken bool, err error) {
	t, err := w.t.box.begin(ctx)
	if err != nil {
		return false, err
	}
	defer t.rollback()
	fresh, err := w.t.box.claim(ctx, t, w.scope, []*entry{w.e})
	if state(err) == lockNotAvailable {
		w.e.result = w.t.box.busy(w.e, "")
		return false, nil
	}
	if err != nil || len(fresh) == 0 && !w.e.marked {
		return false, err
	}
	var row struct {
		State        string
		Running      bool
		Starts       int
		Milliseconds int64
	}
	err = t.tx.GetContext(ctx, &row, w.t.sql.find, w.e.key.text())
	switch {
	case errors.Is(err, sql.ErrNoRows) && w.e.marked: // a duplicate, as the claim says
		return false, nil
	case errors.Is(err, sql.ErrNoRows):
	case err != nil:
		return false, fmt.Errorf("find task: %w", err)
	case row.State == "parked":
		w.e.result = w.parked(row.Starts)
		return false, nil
	case w.e.marked: // whoever has it has said that it is decided
		return false, nil
	case row.Running:
		w.e.result = Result{Outcome: Busy, Err: &BusyError{w.e.id, "", time.Duration(row.Milliseconds) * time.Millisecond}}
		return false, nil
	case w.t.cfg.Unknown == Park:
		if _, err := t.tx.ExecContext(ctx, w.t.sql.park, w.e.key.text()); err != nil {
			return false, fmt.Errorf("park task: %w", err)
		}
		if err := w.commit(ctx, t); err != nil {
			return false, err
		}
		w.e.result = w.parked(row.Starts)
		w.t.box.cfg.Logger.Error("inbox: task parked, whether its effect took place is not known", "id", w.e.id, "starts", row.Starts)
		return false, nil
	default:
		taken = true
	}
	if err := t.tx.GetContext(ctx, &w.task.Starts, w.t.sql.start, w.row()...); err != nil {
		return false, fmt.Errorf("start task: %w", err)
	}
	return taken, w.commit(ctx, t)
}

// commit gives back the row of the claim, and commits.
func (w *work) commit(ctx context.Context, t *txn) error {
	if err := w.t.box.unclaim(ctx, t, []*entry{w.e}); err != nil {
		return err
	}
	if err := t.commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

func (w *work) parked(starts int) Result {
	return Result{Outcome: Parked, Err: &ParkedError{w.e.id, starts}}
}

// token is the fence of the try, 0 if there is none.
func (w *work) token() int64 {
	if len(w.e.fences) == 0 {
		return 0
	}
	return w.e.fences[0].token
}

func (w *work) row() []any {
	e := w.e
	var fingerprint, topic, part, off any
	if e.digested {
		fingerprint = e.fingerprint.text()
	}
	if p := e.position; p != nil {
		topic, part, off = uuid(p.Topic).text(), p.Partition, p.Offset
	}
	return []any{
		e.key.text(), strconv.FormatInt(w.scope, 10), readable(e.id), fingerprint, topic, part, off,
		w.owner.text(), w.token(), milliseconds(w.t.cfg.Lease),
	}
}

// finish writes down that the effect took place. It tries for as long as the lease
// lasts, whatever becomes of ctx: else all that is left is unknown fate.
func (w *work) finish(ctx context.Context) Result {
	ctx = context.WithoutCancel(ctx)
	for pause := 20 * time.Millisecond; ; pause *= 2 {
		n, err := w.exec(ctx, w.t.sql.finish)
		switch {
		case err == nil && n == 1:
			return Result{Outcome: Applied}
		case err == nil: // or an earlier try of this loop went through, and its answer was lost
			return w.e.again(errors.New("its effect took place, and somebody else has taken the task over, or has it as done"))
		case w.lease.Remaining() <= pause:
			return w.e.again(fmt.Errorf("%w: its effect took place, but that could not be written down: %w", ErrUnknown, err))
		}
		time.Sleep(pause)
	}
}

// end writes down how a try ended that did not finish. If that fails, its lease ends.
func (w *work) end(ctx context.Context, statement string) {
	w.lease.End() // first, so that no renewal comes after it
	if _, err := w.exec(context.WithoutCancel(ctx), statement); err != nil {
		w.t.box.cfg.Logger.Warn("inbox: end of a task not written down, its lease will end", "id", w.e.id, "error", err)
	}
}

func (w *work) exec(ctx context.Context, statement string) (rows int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, w.t.box.cfg.CommitTimeout)
	defer cancel()
	return w.t.box.alone(ctx, statement, w.e.key.text(), w.owner.text(), w.token())
}

// renew implements [watchdog.Config.Renew].
func (t *Tasks) renew(ctx context.Context, leases []*watchdog.Lease) []watchdog.Verdict {
	var keys, owners array
	for _, l := range leases {
		w := l.Holder().(*work)
		keys.uuid(w.e.key)
		owners.uuid(w.owner)
	}
	statement, err := inline(t.sql.renew, keys.String(), owners.String(), milliseconds(t.cfg.Lease))
	if err != nil {
		return nil
	}
	var names []string
	if err := t.box.db.SelectContext(ctx, &names, statement); err != nil {
		return nil // no answer: asked again while the trust lasts
	}
	held := make(map[uuid]bool, len(names))
	for _, name := range names {
		if key, err := parseUUID(name); err == nil {
			held[key] = true
		}
	}
	verdicts := make([]watchdog.Verdict, len(leases))
	for i, l := range leases {
		verdicts[i] = watchdog.Taken
		if held[l.Holder().(*work).e.key] {
			verdicts[i] = watchdog.Held
		}
	}
	return verdicts
}

// Resolve decides about the parked task of a message: it happened, so that further
// deliveries are duplicates, or it did not, so that the next one runs. It returns
// [ErrNotParked] if there is no such task.
func (t *Tasks) Resolve(ctx context.Context, id string, happened bool) error {
	e, err := t.box.newEntry(0, &Message{ID: id})
	if err != nil {
		return err
	}
	statement := t.sql.undone
	if happened {
		statement = t.sql.done
	}
	n, err := t.box.alone(ctx, statement, e.key.text())
	if err == nil && n == 0 {
		err = ErrNotParked
	}
	if err != nil {
		return fmt.Errorf("inbox: resolve message %q: %w", id, err)
	}
	return nil
}

// ErrNotParked: there is no parked task of that message.
var ErrNotParked = errors.New("inbox: message is not parked")

// text returns the form that the database reads.
func (u uuid) text() string { return hex.EncodeToString(u[:]) }
