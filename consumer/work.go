package consumer

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/onceward/onceward/middleware"
)

var errGoexit = errors.New("handler ended its goroutine")

// work handles batches until the dispatcher is closed.
func (s *session) work() {
	done := false
	defer func() {
		if !done { // the handler ended this goroutine (t.FailNow does): its batch is settled
			s.workers.Go(s.work)
		}
	}()
	for b := s.disp.take(); b != nil; b = s.disp.take() {
		s.handle(b)
	}
	done = true
}

func (s *session) handle(b *batch) {
	start := time.Now()
	errs, err := []error(nil), errGoexit
	defer func() { s.settle(b, errs, err, time.Since(start)) }()
	errs, err = call(b.ctx, b.route.Handler, b.msgs)
}

// call runs a handler. The second error is about the batch as a whole.
func call(ctx context.Context, h middleware.Handler, ms []*middleware.Message) (errs []error, err error) {
	n := len(ms)
	defer func() {
		if v := recover(); v != nil {
			errs, err = nil, &middleware.PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	errs = h.Handle(ctx, ms)
	if len(errs) != 0 && len(errs) != n {
		return nil, fmt.Errorf("handler returned %d errors for %d messages, must return none or one for each", len(errs), n)
	}
	return errs, nil
}

// settle judges what became of each message of a batch and tells the dispatcher.
func (s *session) settle(b *batch, errs []error, whole error, took time.Duration) {
	cut := b.ctx.Err() != nil // by us: nothing else ends it before the batch is finished
	verdicts := make([]verdict, len(b.items))
	for i, it := range b.items {
		v := &verdicts[i]
		switch {
		case whole != nil:
			*v = s.cfg.blame(it, whole)
		case len(errs) > 0 && errs[i] != nil:
			*v = s.cfg.judge(it, errs[i], cut)
		}
		s.report(it, v)
	}
	dead, resume := s.disp.finish(b, verdicts, took)
	s.buried(dead)
	s.flow(resume...)
}

// report logs a failed try: the first ones, then ever fewer, since a message is
// tried without end.
func (s *session) report(it *item, v *verdict) {
	switch v.class {
	case middleware.Retry:
		if n := it.msg.Attempt; n&(n-1) != 0 {
			return
		}
		args := append(s.attrs(it.failed(v.err)), "again_in", v.delay)
		var p *middleware.PanicError
		if errors.As(v.err, &p) {
			args = append(args, "stack", string(p.Stack))
		}
		s.log.Warn("message failed", args...)
	case middleware.Halt:
		s.halt(fmt.Errorf("handler asked to stop: %w", it.failed(v.err)))
	}
}

// buried reports messages that stopped their lanes.
func (s *session) buried(dead []*MessageError) {
	for _, e := range dead {
		s.log.Error("message can never succeed, its lane is stopped", s.attrs(e)...)
	}
}

func (s *session) attrs(e *MessageError) []any {
	return []any{
		"topic", e.Topic, "partition", e.Partition, "offset", e.Offset,
		"key", e.Key, "attempt", e.Attempts, "error", e.Err,
	}
}
