package inbox

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jmoiron/sqlx"

	"github.com/onceward/onceward/inbox/internal/crash"
)

// A handler runs the message at index i of the caller's slice.
type handler func(ctx context.Context, tx *sqlx.Tx, i int) error

// A runner takes the fresh messages of a transaction through their handler, see
// [strider].
type runner func(s *strider, fresh []*entry) error

// Apply applies one message: claim, fn, COMMIT. See [Inbox.ApplyBatch], of which
// it is a batch of one.
func (b *Inbox) Apply(ctx context.Context, m Message, fn func(ctx context.Context, tx *sqlx.Tx) error) Result {
	return b.ApplyBatch(ctx, []Message{m}, func(ctx context.Context, tx *sqlx.Tx, _ int) error {
		return fn(ctx, tx)
	})[0]
}

// ApplyBatch applies messages in common transactions of up to [MaxBatch], and
// returns one result for each, in the same order. It calls fn for message ms[i]
// with i, after the claim, on the calling goroutine, one call at a time. fn gets
// ctx as it is; what it writes with tx is the effect. It must not end tx.
//
// fn may be called for a message several times: when a neighbour of its stride
// failed, when a neighbour broke the connection, and when the server refused the
// COMMIT of a batch, which then is halved. Each time the writes of the call
// before are gone. Keep what fn changes outside of tx fit for that.
//
// A panic of fn is the failure of its message, as a [*PanicError].
//
// If ctx ends while a handler runs or the claim waits, the transaction is rolled
// back and its messages are [Again]. A COMMIT under way is not stopped: it is
// awaited for at most [Config.CommitTimeout].
//
// Of messages with one ID the first is applied and the others are [Again], since
// what they are depends on its COMMIT. So is a message that has another token for
// a resource of one before it. Messages with several fences get transactions of
// their own, after the rest.
//
// The order of the effects within a batch is that of ms only among messages that
// succeed at the first try: messages that depend on each other belong into
// different batches.
func (b *Inbox) ApplyBatch(ctx context.Context, ms []Message, fn func(ctx context.Context, tx *sqlx.Tx, i int) error) []Result {
	return b.applyAll(ctx, ms, MaxBatch, each(fn))
}

// applyAll applies messages in transactions of at most so many.
func (b *Inbox) applyAll(ctx context.Context, ms []Message, most int, fn runner) []Result {
	results := make([]Result, len(ms))
	es := b.admit(ms, results)
	if len(es) > 0 {
		scope, err := b.scopeID(ctx)
		if err == nil {
			err = b.prepare(ctx)
		}
		rest := es
		if err == nil && b.memory.mostlyOld() {
			rest, err = b.recall(ctx, es)
		}
		if err != nil {
			again(es, gaveUp(ctx, err))
		} else {
			for _, batch := range split(rest, b.pace.batch(most)) {
				if b.cfg.MaxAttempts > 0 && batch[0].msg.Suspect {
					b.applySuspect(ctx, scope, batch[0], fn)
				} else {
					b.apply(ctx, scope, batch, fn)
				}
			}
			b.reckon(ctx, scope, es)
			b.memory.note(es)
		}
	}
	for _, e := range es {
		results[e.index] = e.result
	}
	b.buryUnnamed(ctx, ms, results)
	return results
}

// admit returns the messages that can be claimed together, and gives the others
// their results.
func (b *Inbox) admit(ms []Message, results []Result) []*entry {
	es := make([]*entry, 0, len(ms))
	first := make(map[uuid]int, len(ms))
	tokens := make(map[uuid]fence, len(ms))
	for i := range ms {
		e, err := b.newEntry(i, &ms[i])
		if err == nil {
			err = b.checkBody(e)
		}
		if err != nil {
			results[i] = Result{Outcome: Failed, Err: err}
			continue
		}
		if j, ok := first[e.key]; ok {
			results[i] = e.again(fmt.Errorf("message %d of the batch has the same ID, its COMMIT decides", j))
			continue
		}
		other := slices.IndexFunc(e.fences, func(f fence) bool {
			g, ok := tokens[f.resource]
			return ok && g.token != f.token
		})
		if other >= 0 {
			f := e.fences[other]
			results[i] = e.again(fmt.Errorf("resource %q has token %d in the same batch, and %d here", f.name, tokens[f.resource].token, f.token))
			continue
		}
		first[e.key] = i
		for _, f := range e.fences {
			tokens[f.resource] = f
		}
		es = append(es, e)
	}
	return es
}

// split cuts messages into those of one transaction each, at most so many.
func split(es []*entry, most int) [][]*entry {
	several := func(e *entry) bool { return len(e.fences) > 1 || e.msg.Suspect }
	var together []*entry
	for _, e := range es {
		if !several(e) {
			together = append(together, e)
		}
	}
	batches := slices.Collect(slices.Chunk(together, most))
	for i, e := range es {
		if several(e) {
			batches = append(batches, es[i:i+1])
		}
	}
	return batches
}

// Errors of transact that lead to another transaction.
var (
	errApart  = errors.New("a message was set apart") // it broke the transaction, and has its result
	errHalve  = errors.New("somebody in a batch made it fail")
	errPurged = errors.New("its row was purged during the claim")
)

// apply gives each message its result, in as many transactions as it takes.
func (b *Inbox) apply(ctx context.Context, scope int64, es []*entry, fn runner) {
	waited := false
	for {
		es = slices.DeleteFunc(slices.Clone(es), func(e *entry) bool { return e.result.Outcome != 0 })
		if len(es) == 0 {
			return
		}
		err := b.transact(ctx, scope, es, fn)
		b.pace.noteEnd(len(es), err)
		switch {
		case err == nil, errors.Is(err, errApart):
			// Who has no result yet tries again. Each time there are fewer.

		case errors.Is(err, errHalve):
			es = slices.DeleteFunc(es, func(e *entry) bool { return e.result.Outcome != 0 })
			b.apply(ctx, scope, es[:len(es)/2], fn)
			b.apply(ctx, scope, es[len(es)/2:], fn)
			return

		case state(err) == lockNotAvailable:
			// Ask once who is in the way, and go on with the rest. If that was not
			// enough, the one in the way cannot be seen. Finding it by halving the
			// batch would cost a timeout at each step.
			if waited || len(es) == 1 {
				for _, e := range es {
					e.result = b.busy(e, "")
				}
				return
			}
			waited = true
			if err := b.setBusyApart(ctx, es); err != nil {
				again(es, gaveUp(ctx, err))
				return
			}

		default:
			again(es, gaveUp(ctx, err))
			return
		}
	}
}

// transact takes messages through one transaction. If it returns nil, each has
// its result.
func (b *Inbox) transact(ctx context.Context, scope int64, es []*entry, fn runner) error {
	t, fresh, err := b.claimed(ctx, scope, es)
	if err != nil {
		return err
	}
	defer t.rollback()
	if len(fresh) == 0 {
		return nil
	}
	if err := t.reach(ctx, crash.AfterClaim); err != nil {
		return err
	}
	held, fresh, err := b.park(ctx, t, scope, fresh)
	if err != nil {
		return err
	}
	if len(fresh) > 0 {
		if err := fn(&strider{ctx: ctx, b: b, t: t, others: len(held) > 0}, fresh); err != nil {
			return err
		}
	}
	if err := t.reach(ctx, crash.AfterHandler); err != nil || t.over {
		return err
	}
	var kept, failed []*entry
	for _, e := range slices.Concat(fresh, held) { // who ran comes first: it may be to blame
		if e.result.Outcome == 0 {
			kept = append(kept, e)
		} else {
			failed = append(failed, e)
		}
	}
	if worth, err := b.account(ctx, t, scope, kept, failed); err != nil || !worth {
		unaccount(failed, false)
		if state(err) == inFailedTransaction && len(kept) > 0 {
			return b.notCommitted(t, kept, err) // a handler without a savepoint after it has hidden an error
		}
		return err
	}
	if err := t.reach(ctx, crash.BeforeCommit); err != nil {
		return err
	}
	if err := t.commit(); err != nil {
		unaccount(failed, t.unknown(err))
		if len(kept) == 0 {
			return fmt.Errorf("commit: %w", err)
		}
		return b.notCommitted(t, kept, err)
	}
	if err := t.reach(ctx, crash.AfterCommit); err != nil {
		return err
	}
	for _, e := range kept {
		e.result = e.run.result
	}
	b.died(failed)
	return nil
}

// notCommitted decides what an error of COMMIT means.
func (b *Inbox) notCommitted(t *txn, kept []*entry, err error) error {
	one := kept[0]
	switch {
	case errors.Is(err, errNoAnswer):
		return fmt.Errorf("%w: %w", ErrUnknown, err)

	case ended(err): // only a handler has done this, of a transaction without savepoints
		one.result = one.failed(fmt.Errorf("%w: %w", ErrEnded, err))
		return nil

	case collided(err):
		return fmt.Errorf("commit: %w", err)

	case t.unknown(err):
		err = fmt.Errorf("%w: %w", ErrUnknown, err)
		if len(kept) == 1 && one.run.took >= b.cfg.MaxHold {
			// It was idle for longer than the server allows, so this is no accident. If
			// the COMMIT came through all the same, the next try is a Duplicate.
			one.result = one.failed(fmt.Errorf("%w (MaxHold is %v): %w", ErrIdle, b.cfg.MaxHold, err))
			return nil
		}
		return err

	case len(kept) > 1:
		return fmt.Errorf("%w: %w", errHalve, err)

	case state(err) == "", state(err) == inFailedTransaction:
		// The first is the driver's word, in place of the server's, for a COMMIT that
		// was a ROLLBACK: a statement had failed, and nobody had said so.
		err = fmt.Errorf("%w: %w", ErrSwallowed, err)
	}
	one.result = one.failed(err) // deferred constraints and triggers speak at COMMIT
	return nil
}

// gaveUp returns err, or what ended ctx if it is over: then err is but a
// consequence.
func gaveUp(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	return err
}

func again(es []*entry, err error) {
	for _, e := range es {
		if e.result.Outcome == 0 {
			e.result = e.again(err)
		}
	}
}

func (e *entry) again(err error) Result { return Result{Outcome: Again, Err: &AgainError{e.id, err}} }

// failed is the result of a handler's error, in a transaction that is otherwise
// sound. To wait in vain for a lock is not the message's fault.
func (e *entry) failed(err error) Result {
	if state(err) == lockNotAvailable {
		e.blamed = true
		return e.again(err)
	}
	return Result{Outcome: Failed, Err: fmt.Errorf("inbox: handle message %q: %w", e.id, err)}
}

func (b *Inbox) busy(e *entry, resource string) Result {
	return Result{Outcome: Busy, Err: &BusyError{e.id, resource, b.cfg.LockTimeout}}
}
