package inbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"
)

// A strider takes the fresh messages of one transaction through their handlers.
// A message that fails gets its result; one that succeeds has run.result, which
// counts once it is committed. An error of its methods is the end of the
// transaction.
type strider struct {
	ctx context.Context // of one call, and so of the strider
	b   *Inbox
	t   *txn
	fn  handler

	others bool // the transaction has messages that are not handled
}

// A run is what a handler did in the transaction at work.
type run struct {
	took   time.Duration
	result Result // Applied or Skipped, unless it failed
}

// The savepoint is released and made anew in one trip: without arguments all
// drivers use the simple protocol, which takes several statements.
const (
	savepoint  = `SAVEPOINT onceward`
	nextStride = `RELEASE SAVEPOINT onceward; SAVEPOINT onceward`
	undoStride = `ROLLBACK TO SAVEPOINT onceward`
)

// each is the runner of a handler of one message.
func each(fn handler) runner {
	return func(s *strider, fresh []*entry) error {
		s.fn = fn
		if len(fresh) == 1 {
			return s.single(fresh[0])
		}
		return s.many(fresh)
	}
}

// single runs the only message of a transaction, which needs no savepoint.
func (s *strider) single(e *entry) error {
	err := s.call(e)
	if err == nil {
		return nil
	}
	if err := s.hopeless(e, err); err != nil {
		return err
	}
	return s.alone(e, err)
}

// many runs messages in strides.
func (s *strider) many(es []*entry) error {
	if _, err := s.t.tx.ExecContext(s.ctx, savepoint); err != nil {
		return fmt.Errorf("savepoint: %w", err)
	}
	for stride := range slices.Chunk(es, s.b.pace.stride(s.b.cfg.Stride)) {
		if err := s.settle(stride); err != nil {
			return err
		}
	}
	s.notePace(es)
	return nil
}

func (s *strider) notePace(es []*entry) {
	failed := 0
	for _, e := range es {
		if e.result.Outcome == Failed {
			failed++
		}
	}
	s.b.pace.note(failed, len(es))
}

// settle runs messages between two savepoints. If one of them fails, it is set
// apart, and those that had run before it run again, as their writes are gone
// with its own. Each savepoint that is released holds one message or more, so a
// transaction has at most MaxBatch of them.
func (s *strider) settle(es []*entry) error {
	if len(es) == 0 {
		return nil
	}
	bad, err := s.try(es)
	if err == nil {
		return nil
	}
	if bad >= 0 {
		if err := s.hopeless(es[bad], err); err != nil {
			return err
		}
	}
	if _, undone := s.t.tx.ExecContext(s.ctx, undoStride); undone != nil {
		return s.broken(es, bad, err, undone)
	}
	hidden := bad < 0 || state(err) == inFailedTransaction
	switch {
	case len(es) == 1 && bad < 0:
		es[0].result = es[0].failed(fmt.Errorf("%w: %w", ErrSwallowed, err))
		return nil
	case hidden && len(es) > 1:
		// One of those before the end, or before the one that reports it, has hidden
		// the error that the transaction failed with. Apart they cannot.
		for i := range es {
			if err := s.settle(es[i : i+1]); err != nil {
				return err
			}
		}
		return nil
	}
	es[bad].result = es[bad].failed(err)
	if err := s.settle(es[:bad]); err != nil {
		return err
	}
	return s.settle(es[bad+1:])
}

// try runs messages and sets the next savepoint, which also finds an error that
// a handler has hidden: in a failed transaction, RELEASE fails. It returns the
// position of the message whose handler returned an error, or -1.
func (s *strider) try(es []*entry) (bad int, _ error) {
	for _, e := range es {
		e.run = run{}
	}
	for i, e := range es {
		if err := s.call(e); err != nil {
			return i, err
		}
	}
	_, err := s.t.tx.ExecContext(s.ctx, nextStride)
	return -1, err
}

// call runs the handler of a message.
func (s *strider) call(e *entry) error {
	e.run = run{result: Result{Outcome: Applied}}
	if s.ctx.Err() != nil {
		return context.Cause(s.ctx)
	}
	start := time.Now()
	err := protect(func() error { return s.fn(s.ctx, s.t.tx, e.index) })
	e.run.took = time.Since(start)
	if skipped(err) {
		e.run.result = Result{Outcome: Skipped, Err: fmt.Errorf("inbox: handle message %q: %w", e.id, err)}
		err = nil
	}
	if err == nil && s.ctx.Err() != nil {
		// database/sql refuses statements under a context that has ended, and the
		// server does not know: who ignores that error seems to have succeeded.
		return context.Cause(s.ctx)
	}
	return err
}

// hopeless returns an error if the whole transaction has to be given up because
// of err, through nobody's fault.
func (s *strider) hopeless(e *entry, err error) error {
	if s.ctx.Err() != nil || collided(err) {
		e.blamed = e.run.took > 0
		return fmt.Errorf("handle message %q: %w", e.id, err)
	}
	return nil
}

// broken gives a result to whoever broke the transaction: it failed with err, of
// the handler of es[bad] if bad >= 0, and could not be undone.
func (s *strider) broken(es []*entry, bad int, err, undone error) error {
	if ended(err) || ended(undone) {
		// Any of the stride may have done it. It is a mistake in the code, so it is
		// charged to all of them, or it would go on for ever.
		for _, e := range es {
			e.result = e.failed(fmt.Errorf("%w: %w", ErrEnded, errors.Join(err, undone)))
		}
		return errApart
	}
	slowest := slices.MaxFunc(es, func(a, b *entry) int { return cmp.Compare(a.run.took, b.run.took) })
	switch {
	case s.ctx.Err() != nil:
		return undone
	case slowest.run.took >= s.b.cfg.MaxHold:
		// The server has ended the transaction, and tells the next one to ask.
		slowest.result = slowest.failed(fmt.Errorf("%w (it took %v, MaxHold is %v): %w", ErrIdle, slowest.run.took, s.b.cfg.MaxHold, errors.Join(err, undone)))
		return errApart
	case bad < 0:
		return fmt.Errorf("connection lost: %w", err)
	case disconnected(err): // perhaps its own doing, perhaps not
		es[bad].blamed = true
		es[bad].result = es[bad].again(fmt.Errorf("connection lost while its handler ran: %w", err))
		return errApart
	}
	es[bad].result = es[bad].failed(err)
	return errApart
}

// protect runs f and turns a panic into a [*PanicError].
func protect(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return f()
}
