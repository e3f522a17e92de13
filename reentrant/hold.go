package reentrant

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward/watchdog"
)

// A hold is one outermost grant of one lock: an owner at the store, a lease at the
// watchdog, and a context that ends with it. Re-entries share it.
type hold struct {
	lease watchdog.Lease

	locker *Locker
	name   string
	owner  string // fresh for each hold, so that nothing late can touch a newer one
	fence  int64  // set before the hold is shared
	ctx    context.Context
	cancel context.CancelCauseFunc
	values carrier // the context below ctx: it carries the hold
	outer  Lease   // the handle of the outermost acquire
	loss   atomic.Pointer[LostError]

	mu    sync.Mutex    // guards turn and depth against each other, never held while waiting
	turn  chan struct{} // see begin; nil until the hold is first re-entered
	depth int           // changed by who has the turn
}

func (l *Locker) newHold(ctx context.Context, name string, ttl time.Duration) *hold {
	h := &hold{locker: l, name: name, owner: l.owners.next(), depth: 1}
	h.outer.hold = h
	h.values.carry(ctx, &h.outer)
	h.ctx, h.cancel = context.WithCancelCause(&h.values)
	h.outer.ctx = h.ctx
	h.lease.Init(l.dog, l.store.Group(name), ttl, h)
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

// begin takes the turn to change the depth, here and at the store: the holder of
// the context is the only writer of its owner's depth. A turn lasts for one
// round trip. It returns nil if ctx ends first.
func (h *hold) begin(ctx context.Context) (done func()) {
	turn := h.turns()
	select {
	case turn <- struct{}{}:
		return func() { <-turn }
	case <-ctx.Done():
		return nil
	}
}

func (h *hold) turns() chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.turn == nil {
		h.turn = make(chan struct{}, 1)
	}
	return h.turn
}

// enter adds one to the depth and returns a handle for it.
func (h *hold) enter(ctx context.Context) (*Lease, error) {
	done := h.begin(ctx)
	if done == nil {
		return nil, fmt.Errorf("enter lock %q: %w", h.name, context.Cause(ctx))
	}
	h.mu.Lock()
	depth := h.depth
	h.mu.Unlock()
	if h.ctx.Err() != nil || depth == 0 { // a lost hold is never silently taken anew
		done()
		return nil, fmt.Errorf("enter lock %q: %w", h.name, context.Cause(h.ctx))
	}
	req := AcquireRequest{Name: h.name, Owner: h.owner, Depth: depth + 1, TTL: h.lease.TTL()}
	// If ctx ends while the answer is late the depth at the store may be one too
	// high. The next enter finds it done, the next release lowers it, and the last
	// one frees the lock at whatever depth it is. Until then it is still our turn.
	r, err := h.locker.acquires.do(ctx, h.locker.store.Group(h.name), req, func(AcquireReply) { done() })
	if err != nil {
		return nil, fmt.Errorf("enter lock %q: %w", h.name, err)
	}
	defer done()
	switch {
	case r.Err != nil:
		return nil, r.Err
	case r.Answer == Held && r.Fence == h.fence:
		h.mu.Lock()
		h.depth++
		h.mu.Unlock()
		lease := &Lease{hold: h}
		lease.ctx, lease.cancel = context.WithCancelCause(carry(ctx, lease))
		follow(lease.cancel, &h.outer)
		return lease, nil
	}
	why := watchdog.Expired
	if r.Answer == Held { // granted anew to the same owner by a late copy of its acquire
		why = watchdog.TakenOver
	}
	if h.lease.End() {
		h.Lost(why)
	}
	return nil, fmt.Errorf("enter lock %q: %w", h.name, &LostError{Name: h.name, Fence: h.fence, Reason: why})
}

// leave takes the turn for the release of one handle, if it is free, and returns the
// depth that stays.
func (h *hold) leave() (left int, done func(), ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	done = func() {}
	if turn := h.turn; turn != nil { // never re-entered, so nobody to take turns with
		select {
		case turn <- struct{}{}:
			done = func() { <-turn }
		default:
			return 0, nil, false
		}
	}
	h.depth--
	if h.depth == 0 {
		// First nobody relies on the lock any more, then it is given away.
		h.lease.End()
		h.cancel(ErrReleased)
	}
	return h.depth, done, true
}

// departure asks for the release of one handle, which leaves that depth behind.
func (h *hold) departure(left int) ReleaseRequest {
	return ReleaseRequest{Name: h.name, Owner: h.owner, Leave: left, TTL: h.lease.TTL()}
}

// depart releases one handle, in a round trip that is shared with other callers. So
// it does not end with one of them: the client's own time-outs bound it.
func (h *hold) depart(left int) error {
	l := h.locker
	r, _ := l.releases.do(context.Background(), l.store.Group(h.name), h.departure(left), nil)
	return h.settle(r, left)
}

// settle turns the answer to a release into what the caller should know.
func (h *hold) settle(r HoldReply, left int) error {
	switch {
	case h.loss.Load() != nil:
		return h.loss.Load()
	case r.Err != nil:
		return fmt.Errorf("%w (it frees itself within %v)", r.Err, h.lease.TTL())
	case left == 0 || r.Answer == Held:
		// A last release that finds somebody else, or nobody, is one that was
		// repeated because its reply was lost: within its trust the lock was ours.
		return nil
	case r.Answer == Busy:
		return &LostError{Name: h.name, Fence: h.fence, Reason: watchdog.TakenOver}
	}
	return &LostError{Name: h.name, Fence: h.fence, Reason: watchdog.Expired}
}
