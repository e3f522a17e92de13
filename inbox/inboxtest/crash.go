package inboxtest

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/onceward/onceward/inbox/internal/crash"
)

// A Point is a place on the way of a transaction of the inbox. One in which nothing is
// fresh, or nothing is left to commit, does not come to all of them.
type Point = crash.Point

const (
	// AfterClaim: at least one message may run, and no handler was called.
	AfterClaim = crash.AfterClaim
	// AfterHandler: all handlers of the transaction have run.
	AfterHandler = crash.AfterHandler
	// BeforeCommit: all is written, and COMMIT comes next.
	BeforeCommit = crash.BeforeCommit
	// AfterCommit: COMMIT was answered, and the caller does not know it yet.
	AfterCommit = crash.AfterCommit
)

// Points returns all points, in the order in which a transaction comes to them.
func Points() []Point { return []Point{AfterClaim, AfterHandler, BeforeCommit, AfterCommit} }

// ErrCrashed is matched by the errors of messages whose transaction died by [CrashAt].
var ErrCrashed = errors.New("inboxtest: crashed on purpose")

// CrashAt returns a context under which the first transaction that comes to p dies
// there: its connection is closed without ROLLBACK, and all its messages are
// [inbox.Again], with an error that matches [ErrCrashed]. Later transactions live, so
// the context can go through a loop that tries again.
func CrashAt(ctx context.Context, p Point) context.Context {
	var done atomic.Bool
	return At(ctx, func(_ context.Context, at Point) error {
		if at == p && done.CompareAndSwap(false, true) {
			return ErrCrashed
		}
		return nil
	})
}

// At returns a context under which hook is called at each point that a transaction
// comes to, on the goroutine of the call, with the context of the call, and with the
// transaction open. If it returns an error, the transaction dies there as in
// [CrashAt]. One context has one hook, the innermost.
func At(ctx context.Context, hook func(ctx context.Context, p Point) error) context.Context {
	return crash.With(ctx, hook)
}
