package reentrant

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// A Lease is one hold of a lock, from one call of Acquire to its Release. It may
// be used by several goroutines.
type Lease struct {
	hold     *hold
	ctx      context.Context
	cancel   context.CancelCauseFunc // of a re-entry; the outermost ends with its hold
	released atomic.Bool
}

// Name returns the name of the lock.
func (l *Lease) Name() string { return l.hold.name }

// Fence returns the number of the grant: higher than that of every grant of this
// lock before. A re-entry has the fence of the outermost hold.
func (l *Lease) Fence() int64 { return l.hold.fence }

// OwnerDigest names the owner of the lock, for logs and reports. The owner itself
// is a secret: whoever knows it can release the lock.
func (l *Lease) OwnerDigest() string { return ownerDigest(l.hold.owner) }

// Resource names the lock for a fence that is checked elsewhere: the same for
// all lockers with one prefix.
func (l *Lease) Resource() string { return l.hold.locker.cfg.Prefix + ":" + l.hold.name }

// Context returns the context for the work under the lock. It is derived from
// that given to Acquire, carries the lease (see [FromContext]), and ends when
// that one does, with cause [ErrReleased] when the lease is released, with a
// [*LostError] before the lock can be somebody else's, or with [ErrClosed].
func (l *Lease) Context() context.Context { return l.ctx }

// Remaining returns how long the lock can be relied on without a further
// renewal. It is 0 once the lease is released or lost.
func (l *Lease) Remaining() time.Duration {
	if l.released.Load() {
		return 0
	}
	return l.hold.lease.Remaining()
}

// Release gives back this hold, and frees the lock with the last one. It
// does so though ctx is over, within a bound of its own.
//
// It returns a [*LostError] if the lock was lost before, [ErrReleased] if this
// lease was released before, and any other error if the outcome is not known;
// the lock then frees itself within its TTL.
func (l *Lease) Release(context.Context) error {
	if err := l.retire(); err != nil {
		return err
	}
	left, done, ok := l.hold.leave()
	for !ok {
		l.hold.begin(context.Background())() // a turn lasts for a round trip
		left, done, ok = l.hold.leave()
	}
	defer done()
	return l.hold.depart(left)
}

// retire marks l as released and reports whether it was not before.
func (l *Lease) retire() error {
	if l.released.Swap(true) {
		return fmt.Errorf("release lock %q: %w", l.hold.name, ErrReleased)
	}
	if l.cancel != nil {
		l.cancel(ErrReleased)
	}
	return nil
}
