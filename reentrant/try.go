package reentrant

import (
	"context"
	"fmt"
	"time"

	"github.com/onceward/onceward/watchdog"
)

// withdrawWithin bounds a withdrawal, which does not end with the caller's context.
const withdrawWithin = 5 * time.Second

// tryOne asks once for a lock that ctx does not carry.
func (l *Locker) tryOne(ctx context.Context, name string, o acquireOptions) (*Lease, error) {
	h := l.newHold(ctx, name, l.ttl(o))
	sent := time.Now()
	r, err := l.acquires.do(ctx, l.store.Group(name), h.request(o, 0), func(r AcquireReply) { l.settleLate(ctx, h, r) })
	if err != nil {
		h.cancel(err)
		return nil, fmt.Errorf("acquire lock %q: %w", name, err)
	}
	lease, err, ghost := l.settle(ctx, h, o, sent, r)
	if ghost {
		l.withdraw(ctx, false, h)
	}
	return lease, err
}

func (h *hold) request(o acquireOptions, seat time.Duration) AcquireRequest {
	return AcquireRequest{Name: h.name, Owner: h.owner, Depth: 1, TTL: h.lease.TTL(), Seat: seat, FenceAtLeast: o.hints[h.name]}
}

// tryEach asks once for locks that ctx does not carry, in as few round trips as the
// store needs. Leases and errors are in the order of the names; each name has one
// of the two.
func (l *Locker) tryEach(ctx context.Context, names []string, o acquireOptions) ([]*Lease, []error) {
	leases, errs := make([]*Lease, len(names)), make([]error, len(names))
	// Holds are made before the request leaves, so that their end and their start
	// cannot pass each other.
	holds := make([]*hold, len(names))
	reqs := make([]AcquireRequest, len(names))
	for i, name := range names {
		holds[i] = l.newHold(ctx, name, l.ttl(o))
		reqs[i] = holds[i].request(o, 0)
	}
	sent := time.Now()
	answered := make(chan []AcquireReply, 1)
	go func() { answered <- l.store.Acquire(context.WithoutCancel(ctx), reqs) }()
	select {
	case replies := <-answered:
		var ghosts []*hold
		for i, r := range replies {
			var ghost bool
			if leases[i], errs[i], ghost = l.settle(ctx, holds[i], o, sent, r); ghost {
				ghosts = append(ghosts, holds[i])
			}
		}
		l.withdraw(ctx, false, ghosts...)
	case <-ctx.Done():
		for i, h := range holds {
			errs[i] = fmt.Errorf("acquire lock %q: %w", h.name, context.Cause(ctx))
			h.cancel(errs[i])
		}
		go func() {
			for i, r := range <-answered {
				l.settleLate(ctx, holds[i], r)
			}
		}()
	}
	return leases, errs
}

// settle turns the reply to an outermost acquire into a lease or an error. A ghost
// is a hold that may have been granted, and that nobody will use.
func (l *Locker) settle(ctx context.Context, h *hold, o acquireOptions, sent time.Time, r AcquireReply) (lease *Lease, err error, ghost bool) {
	switch {
	case r.Err != nil:
		err, ghost = r.Err, !Refused(r.Err)
	case r.Answer != Held:
		err = &BusyError{Name: h.name, Left: r.Left}
	default:
		h.fence = r.Fence
		if ctx.Err() == nil && h.lease.Grant(watchdog.Terms{Sent: sent, Fixed: o.fixed > 0, MaxHold: l.cfg.MaxHold}) {
			return &h.outer, nil, false
		}
		h.lease.End()
		err, ghost = h.tooLate(ctx, sent), true
	}
	h.cancel(err)
	return nil, err, ghost
}

// tooLate says why a grant came too late to be used.
func (h *hold) tooLate(ctx context.Context, sent time.Time) error {
	var cause error = &LostError{Name: h.name, Fence: h.fence, Reason: watchdog.Expired}
	switch {
	case h.locker.life.Err() != nil:
		cause = ErrClosed
	case ctx.Err() != nil:
		cause = context.Cause(ctx)
	}
	return fmt.Errorf("acquire lock %q: granted too late, after %v: %w", h.name, time.Since(sent).Round(time.Millisecond), cause)
}

// settleLate deals with a reply that came when its caller was gone.
func (l *Locker) settleLate(ctx context.Context, h *hold, r AcquireReply) {
	if r.Answer == Held || r.Err != nil && !Refused(r.Err) {
		l.withdraw(ctx, false, h)
	}
}

// withdraw frees, in the background, locks that may have been granted to owners
// that nobody is any more, and gives up their places in the queue.
func (l *Locker) withdraw(ctx context.Context, seated bool, ghosts ...*hold) {
	if len(ghosts) == 0 {
		return
	}
	reqs := make([]ReleaseRequest, len(ghosts))
	for i, h := range ghosts {
		reqs[i] = ReleaseRequest{Name: h.name, Owner: h.owner, TTL: h.lease.TTL(), GiveUp: seated}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return // Close may be waiting already; the locks end by their TTL
	}
	l.background.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawWithin)
		defer cancel()
		for _, r := range l.store.Release(ctx, reqs) {
			if r.Err != nil {
				l.cfg.Logger.Warn("lock not withdrawn, it frees itself within its TTL", "error", r.Err)
			}
		}
	})
}
