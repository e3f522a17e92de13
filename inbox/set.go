package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jmoiron/sqlx"
)

// ApplySet is [Inbox.ApplyBatch] for a handler that takes all fresh messages of a
// transaction, up to [MaxSet], at once, so that it can write them with statements about sets: the
// fastest form. fn gets the indices in ms of those that are fresh, in ascending
// order, and returns nil, or one error per index in the same order.
//
// Messages with an error are failed, and their writes must go, which only the whole
// transaction can: it is rolled back, and fn is called again, in a new one, for those
// without. If fn gives an error to all, panics, or breaks the transaction, nobody knows who
// did it: the messages are halved, again and again, until the one to blame is alone.
// So a failing message costs its neighbours up to eight more calls. Where more
// than one in a hundred fails, ApplyBatch is faster.
func (b *Inbox) ApplySet(ctx context.Context, ms []Message, fn func(ctx context.Context, tx *sqlx.Tx, is []int) []error) []Result {
	return b.applyAll(ctx, ms, MaxSet, func(s *strider, fresh []*entry) error { return s.set(fresh, fn) })
}

// set runs all messages in one call.
func (s *strider) set(fresh []*entry, fn func(ctx context.Context, tx *sqlx.Tx, is []int) []error) error {
	is := make([]int, len(fresh))
	for i, e := range fresh {
		is[i] = e.index
		e.run = run{result: Result{Outcome: Applied}}
	}
	if s.ctx.Err() != nil {
		return context.Cause(s.ctx)
	}
	start := time.Now()
	var errs []error
	whole := protect(func() error {
		errs = fn(s.ctx, s.t.tx, is)
		if len(errs) != 0 && len(errs) != len(is) {
			return fmt.Errorf("handler returned %d errors for %d messages, must be none or one each", len(errs), len(is))
		}
		return nil
	})
	took := time.Since(start)
	blamed, first := s.blame(fresh, errs, whole, took)
	switch {
	case s.ctx.Err() != nil: // the errors are but a consequence, and so is success under a dead context
		return errors.Join(context.Cause(s.ctx), first)
	case len(blamed) == 0:
		return nil
	case collided(first):
		return fmt.Errorf("handle messages: %w", first)
	case len(fresh) == 1:
		return s.alone(fresh[0], first)
	case len(blamed) == len(fresh) || disconnected(first):
		return fmt.Errorf("%w: %w", errHalve, first)
	}
	for e, err := range blamed {
		e.result = e.failed(err)
	}
	return errApart
}

// blame returns the messages that failed, and one of their errors. One that chose not
// to act is not among them, nor one whose statement met a transaction that had failed
// before, unless nobody says with what.
func (s *strider) blame(fresh []*entry, errs []error, whole error, took time.Duration) (blamed map[*entry]error, first error) {
	blamed = map[*entry]error{}
	var after error
	for i, e := range fresh {
		e.run.took = took
		err := whole
		if err == nil && len(errs) > 0 {
			err = errs[i]
		}
		switch {
		case err == nil:
			continue
		case skipped(err):
			e.run.result = Result{Outcome: Skipped, Err: fmt.Errorf("inbox: handle message %q: %w", e.id, err)}
			continue
		case state(err) == inFailedTransaction:
			after = err
			continue
		case first == nil || collided(err):
			first = err
		}
		blamed[e] = err
	}
	if len(blamed) == 0 && after != nil { // one of those before has hidden its error
		for _, e := range fresh {
			blamed[e] = after
		}
		first = after
	}
	return blamed, first
}

// alone gives the only message of a transaction its result.
func (s *strider) alone(e *entry, err error) error {
	if undone := s.t.rollback(); undone != nil {
		return s.broken([]*entry{e}, 0, err, undone)
	}
	e.result = e.failed(err)
	return nil
}
