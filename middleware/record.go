package middleware

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"

	"github.com/onceward/onceward/reentrant"
	"github.com/twmb/franz-go/pkg/kgo"
)

// RecordFunc lets a function of one record be a [Handler], for effects that need
// no transaction. The records of a batch run side by side, each on a goroutine
// of its own and with a context that ends with its own lease. A panic is that
// record's error.
type RecordFunc func(ctx context.Context, r *kgo.Record) error

// Handle calls f for each message and waits for all of them.
func (f RecordFunc) Handle(ctx context.Context, ms []*Message) []error {
	errs := make([]error, len(ms))
	run := func(i int, m *Message) {
		ctx := reentrant.Narrow(ctx, m.Names()...)
		errs[i] = blame(ctx, protect(func() error { return f(ctx, m.Record) }))
	}
	if len(ms) == 1 {
		run(0, ms[0])
		return errs
	}
	var wg sync.WaitGroup
	for i, m := range ms { // keys differ, so they may run side by side
		wg.Go(func() { run(i, m) })
	}
	wg.Wait()
	return errs
}

// blame returns err as what it is: if ctx is over, a consequence of that. A driver or
// a client that was interrupted may call it by any other name.
func blame(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	return fmt.Errorf("%w: %w", context.Cause(ctx), err)
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
