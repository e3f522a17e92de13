package reentrant

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward/watchdog"
)

// A hold is one outermost grant of one lock: an owner at Redis, a lease at the
// watchdog, and a context that ends with it. Re-entries share it.
type hold struct {
	lease watchdog.Lease

	locker *Locker
	name   string
	owner  string // fresh for each hold, so that nothing late can touch a newer one
	fence  int64  // set before the hold is shared
	ctx    context.Context
	cancel context.CancelCauseFunc
	outer  Lease // the handle of the outermost acquire
	loss   atomic.Pointer[LostError]

	// turn is held (by sending) while the depth is changed here and at Redis: the
	// holder of the context is the only writer of its owner's depth.
	turn  chan struct{}
	depth int
}

func (l *Locker) newHold(ctx context.Context, name string, ttl time.Duration) *hold {
	h := &hold{locker: l, name: name, owner: newOwner(), turn: make(chan struct{}, 1), depth: 1}
	h.outer.hold = h
	h.ctx, h.cancel = context.WithCancelCause(carry(ctx, &h.outer))
	h.outer.ctx = h.ctx
	h.lease.Init(l.dog, l.store.group(name), ttl, h)
	return h
}

// Lost implements [watchdog.Holder].
func (h *hold) Lost(why watchdog.Reason) {
	if why == watchdog.Closed {
		h.cancel(ErrClosed)
		return
	}
	err := &LostError{Name: h.name, Fence: h.fence, Reason: why}
	h.loss.Store(err)
	h.cancel(err)
	h.locker.cfg.Logger.Warn("lock lost", "lock", h.name, "owner", h.outer.OwnerDigest(), "fence", h.fence, "cause", why.String())
}

// tryBegin takes the turn if nobody has it.
func (h *hold) tryBegin() bool {
	select {
	case h.turn <- struct{}{}:
		return true
	default:
		return false
	}
}

// enter adds one to the depth and returns a handle for it.
func (h *hold) enter(ctx context.Context) (*Lease, error) {
	select {
	case h.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("enter lock %q: %w", h.name, context.Cause(ctx))
	}
	defer func() { <-h.turn }()
	if h.ctx.Err() != nil { // a lost hold is never silently taken anew
		return nil, fmt.Errorf("enter lock %q: %w", h.name, context.Cause(h.ctx))
	}
	r := h.locker.store.acquire(ctx, []acquireRequest{{
		name: h.name, owner: h.owner, depth: h.depth + 1, ttl: h.lease.TTL(),
	}})[0]
	switch {
	case r.err != nil:
		// Perhaps the depth at Redis is one too high now. The next enter finds it
		// done, the next release lowers it, and the last one frees the lock at
		// whatever depth it is.
		return nil, r.err
	case r.answer == isHeld && r.fence == h.fence:
		h.depth++
		lease := &Lease{hold: h}
		lease.ctx, lease.cancel = context.WithCancelCause(carry(ctx, lease))
		follow(lease.cancel, &h.outer)
		return lease, nil
	}
	why := watchdog.Expired
	if r.answer == isHeld { // granted anew to the same owner by a late copy of its acquire
		why = watchdog.TakenOver
	}
	if h.lease.End() {
		h.Lost(why)
	}
	return nil, fmt.Errorf("enter lock %q: %w", h.name, &LostError{Name: h.name, Fence: h.fence, Reason: why})
}

// leave prepares the release of one handle and returns the depth that stays. It
// needs the turn.
func (h *hold) leave() (left int) {
	h.depth--
	if h.depth == 0 {
		// First nobody relies on the lock any more, then it is given away.
		h.lease.End()
		h.cancel(ErrReleased)
	}
	return h.depth
}

// settle turns the answer to a release into what the caller should know.
func (h *hold) settle(r holdReply, left int) error {
	switch {
	case r.err != nil:
		return fmt.Errorf("%w (it frees itself within %v)", r.err, h.lease.TTL())
	case h.loss.Load() != nil:
		return h.loss.Load()
	case r.answer == isBusy:
		return &LostError{Name: h.name, Fence: h.fence, Reason: watchdog.TakenOver}
	case r.answer == isGone && left > 0:
		return &LostError{Name: h.name, Fence: h.fence, Reason: watchdog.Expired}
	}
	// A last release that finds nobody is one that was repeated because its reply
	// was lost: within its trust the lock was ours.
	return nil
}
