package inbox

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/onceward/onceward/watchdog"
)

// A Policy says what becomes of a task whose fate is unknown: it ended, by its lease
// or by an error, and nobody can say whether its effect took place.
type Policy int

const (
	// Retry runs the effect again. It takes place once if the other side refuses a
	// second request with the same idempotency key, else at least once.
	Retry Policy = iota + 1
	// Park leaves the task for people to decide, with [Tasks.Resolve]. The effect
	// takes place at most once, with or without an idempotency key.
	Park
	// Ask calls [TasksConfig.Happened] and does what it says.
	Ask
)

// DefaultTaskLease is how long a task is believed to run without a renewal.
const DefaultTaskLease = 30 * time.Second

// TasksConfig says how [Tasks] treats effects outside of the database.
type TasksConfig struct {
	// Unknown says what becomes of a task of unknown fate. Required: there is no
	// default that is safe for every effect.
	Unknown Policy

	// Happened asks the other side whether the effect of a task took place, by its
	// idempotency key. An error leaves that unknown. Required by Ask, and only then
	// allowed.
	Happened func(ctx context.Context, t Task) (bool, error)

	// Lease is how long a task is believed to run when its process dies. It is
	// renewed each third of it.
	//
	// Defaults to [DefaultTaskLease]; at least 1s.
	Lease time.Duration
}

func (c TasksConfig) withDefaults() TasksConfig {
	c.Lease = cmp.Or(c.Lease, DefaultTaskLease)
	return c
}

func (c TasksConfig) validate() error {
	var errs []error
	if c.Unknown < Retry || c.Unknown > Ask {
		errs = append(errs, fmt.Errorf("Unknown is %d, must be Retry, Park or Ask", c.Unknown))
	}
	if (c.Unknown == Ask) != (c.Happened != nil) {
		errs = append(errs, errors.New("Happened must be set if Unknown is Ask, and only then"))
	}
	if c.Lease < time.Second {
		errs = append(errs, fmt.Errorf("Lease is %v, must be at least 1s", c.Lease))
	}
	return errors.Join(errs...)
}

// A Task is a message that is being worked on.
type Task struct {
	ID     string // of the message
	Key    string // for the other side: the same for each try of this message in this scope, and no other's
	Starts int    // how often it was begun, this time included
}

// Tasks applies messages whose effect is outside of the database: a payment, a mail.
// A first transaction writes down that the message is being worked on, then the
// effect runs, and a second transaction writes down that it is done. So a message
// whose worker died in between is known, and the policy decides about it. It is safe
// for concurrent use.
type Tasks struct {
	box *Inbox
	cfg TasksConfig
	dog *watchdog.Watchdog
	sql taskStatements
}

// NewTasks returns tasks that share the scope, the tables and the settings of box. It
// does no I/O.
func NewTasks(box *Inbox, cfg TasksConfig) (*Tasks, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("inbox: %w", err)
	}
	t := &Tasks{box: box, cfg: cfg, sql: newTaskStatements(box.cfg.names())}
	dog, err := watchdog.New(watchdog.Config{
		Renew: t.renew,
		Panicked: func(v any, stack []byte) {
			box.cfg.Logger.Error("inbox: panic while leases of tasks were renewed", "panic", v, "stack", string(stack))
		},
	})
	t.dog = dog
	return t, err
}

// Close ends the contexts of effects that run. It may be called more than once.
func (t *Tasks) Close() { t.dog.Close() }

// NotDone marks an error of an effect: it surely did not take place. Without it an
// error leaves that unknown, since a request that timed out may have arrived.
func NotDone(err error) error { return &notDoneError{err} }

type notDoneError struct{ err error }

func (e *notDoneError) Error() string { return e.err.Error() }
func (e *notDoneError) Unwrap() error { return e.err }

// A ParkedError says that people have to decide whether the effect of a task took
// place: see [Tasks.Resolve].
type ParkedError struct {
	ID     string
	Starts int
}

// Skipped says that the message is decided: nothing is left to do for who delivers it.
func (e *ParkedError) Skipped() bool { return true }

func (e *ParkedError) Error() string {
	return fmt.Sprintf("inbox: message %q is parked after %d starts: whether its effect took place is not known", e.ID, e.Starts)
}

// Do works on one message: the outcome is Applied once the effect has returned nil and
// that is committed; Duplicate, Conflict, Stale as for [Inbox.Apply]; Busy while
// somebody else works on it; [Parked] with a [*ParkedError]; Failed with the error of
// the effect; Again if the context, the lease or the database ended the try.
//
// The effect should hand [Task.Key] to the other side as idempotency key. Its context
// ends with ctx, and before somebody else may start the same task.
func (t *Tasks) Do(ctx context.Context, m Message, effect func(ctx context.Context, t Task) error) Result {
	e, err := t.box.newEntry(0, &m)
	if err != nil {
		return Result{Outcome: Failed, Err: err}
	}
	scope, err := t.box.scopeID(ctx)
	if err != nil {
		return e.again(gaveUp(ctx, err))
	}
	w := newWork(ctx, t, e, scope)
	sent := time.Now()
	taken, err := w.start(ctx)
	switch {
	case err != nil:
		return e.again(gaveUp(ctx, err))
	case e.result.Outcome != 0: // decided, or not ours
		return e.result
	}
	defer w.cancel(nil)
	if !w.lease.Grant(watchdog.Terms{Sent: sent}) {
		w.end(ctx, t.sql.expire)
		return e.again(errors.New("it took too long to begin"))
	}
	defer w.lease.End()

	if taken && t.cfg.Unknown == Ask {
		happened, err := w.ask()
		if err != nil {
			w.end(ctx, t.sql.expire)
			return e.again(fmt.Errorf("%w: ask whether its effect took place: %w", ErrUnknown, err))
		}
		if happened {
			return w.finish(ctx)
		}
	}
	err = protect(func() error { return effect(w.ctx, w.task) })
	if err == nil {
		return w.finish(ctx)
	}
	if _, ok := errors.AsType[*notDoneError](err); ok {
		w.end(ctx, t.sql.drop)
	} else {
		w.end(ctx, t.sql.expire)
	}
	if w.ctx.Err() != nil {
		return e.again(fmt.Errorf("%w: %w", context.Cause(w.ctx), err))
	}
	return Result{Outcome: Failed, Err: fmt.Errorf("inbox: handle message %q: %w", e.id, err)}
}

// A work is one try at a task.
type work struct {
	t      *Tasks
	e      *entry
	scope  int64
	owner  uuid // fresh for each try: a late one cannot complete what another has taken over
	task   Task
	lease  watchdog.Lease
	ctx    context.Context
	cancel context.CancelCauseFunc
}

func newWork(ctx context.Context, t *Tasks, e *entry, scope int64) *work {
	w := &work{t: t, e: e, scope: scope, task: Task{ID: e.id, Key: hex.EncodeToString(e.key[:])}}
	rand.Read(w.owner[:]) // never fails: the program ends instead
	w.ctx, w.cancel = context.WithCancelCause(ctx)
	w.lease.Init(t.dog, "", t.cfg.Lease, w)
	return w
}

// Lost implements [watchdog.Holder].
func (w *work) Lost(why watchdog.Reason) {
	w.cancel(fmt.Errorf("inbox: lease of task %q lost: %v", w.e.id, why))
}

func (w *work) ask() (happened bool, err error) {
	err = protect(func() (err error) {
		happened, err = w.t.cfg.Happened(w.ctx, w.task)
		return err
	})
	if err == nil {
		err = context.Cause(w.ctx)
	}
	return happened, err
}
