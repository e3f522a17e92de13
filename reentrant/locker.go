package reentrant

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/onceward/onceward/watchdog"
	"github.com/redis/go-redis/v9"
)

// releaseWithin bounds a release, which does not end with the caller's context.
const releaseWithin = 5 * time.Second

// A Locker hands out locks. Create it with [New]; it is safe for concurrent use.
type Locker struct {
	cfg   Config
	store store
	dog   *watchdog.Watchdog

	mu         sync.Mutex // guards closed, and background.Add against Wait
	closed     bool
	background sync.WaitGroup // withdrawals
}

// New returns a Locker that keeps its locks in Redis (at least 6.2): a single
// server, behind Sentinel, or a cluster. It does no I/O and does not close rdb.
func New(rdb redis.UniversalClient, cfg Config) (*Locker, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("reentrant: %w", err)
	}
	if rdb == nil {
		return nil, errors.New("reentrant: Redis client is nil")
	}
	return newLocker(newRedisStore(rdb, keyspace{cfg.Prefix, uint32(cfg.Shards)}), cfg)
}

func newLocker(s store, cfg Config) (*Locker, error) {
	l := &Locker{cfg: cfg, store: s}
	dog, err := watchdog.New(watchdog.Config{
		Renew: l.renew,
		Panicked: func(v any, stack []byte) {
			cfg.Logger.Error("panic while leases were renewed", "panic", v, "stack", string(stack))
		},
	})
	if err != nil {
		return nil, err
	}
	l.dog = dog
	return l, nil
}

// renew implements [watchdog.Config.Renew].
func (l *Locker) renew(ctx context.Context, leases []*watchdog.Lease) []watchdog.Verdict {
	reqs := make([]renewRequest, len(leases))
	for i, lease := range leases {
		h := lease.Holder().(*hold)
		reqs[i] = renewRequest{name: h.name, owner: h.owner, fence: h.fence, ttl: lease.TTL()}
	}
	verdicts := make([]watchdog.Verdict, len(leases))
	for i, r := range l.store.renew(ctx, reqs) {
		switch r.answer {
		case isHeld:
			verdicts[i] = watchdog.Held
		case isGone:
			verdicts[i] = watchdog.Gone
		case isBusy:
			verdicts[i] = watchdog.Taken
		}
	}
	return verdicts
}

// Acquire takes the named lock, waiting while another owner holds it, until ctx
// ends or for as long as [WaitAtMost] says. The lock is kept alive until its
// Release.
//
// If ctx carries a lease of the same lock, Acquire enters it once more: depth +
// 1, same fence, to be given back by a Release of its own. If ctx carries
// leases of other locks only, it tries once and does not wait, unless
// WaitAtMost says so: two holders that wait for each other's lock would wait for
// ever.
//
// It returns a [*BusyError] if somebody else holds the lock, together with the
// cause of ctx if that ended the wait; a [*LostError] if the lock that is
// re-entered was lost; [ErrClosed]; an error that matches [ErrName]. After any
// other error the outcome is not known: what may have been granted is withdrawn
// in the background, and frees itself within the TTL at the latest.
func (l *Locker) Acquire(ctx context.Context, name string, opts ...AcquireOption) (*Lease, error) {
	o, err := options(opts)
	if err != nil {
		return nil, fmt.Errorf("acquire lock: %w", err)
	}
	if err := validName(name); err != nil {
		return nil, err
	}
	if outer := l.carriedBy(ctx, name); outer != nil {
		return outer.hold.enter(ctx)
	}
	if o.wait < 0 && find(ctx, func(*Lease) bool { return true }) != nil {
		o.wait = 0
	}
	return l.wait(ctx, name, o)
}

// Do runs fn under the named lock: acquire, fn with the lease's context, release.
// It returns the error of Acquire, or those of fn and Release. The context tells fn when to stop: after a lost lock it must
// not go on.
func (l *Locker) Do(ctx context.Context, name string, fn func(ctx context.Context) error, opts ...AcquireOption) (err error) {
	lease, err := l.Acquire(ctx, name, opts...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lease.Release(ctx)) }()
	return fn(lease.Context())
}

// Close ends the contexts of all leases with cause [ErrClosed], stops renewing
// them and waits for withdrawals under way, a few seconds at most. Leases can
// still be released; what is not frees itself within its TTL. The Redis client
// stays open. Close may be called more than once.
func (l *Locker) Close() error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.dog.Close()
	l.background.Wait()
	return nil
}

// carriedBy returns the lease of the named lock of this locker in ctx.
func (l *Locker) carriedBy(ctx context.Context, name string) *Lease {
	return find(ctx, func(lease *Lease) bool { return lease.hold.locker == l && lease.hold.name == name })
}

// try asks once for locks that ctx does not carry. Leases and errors are in the
// order of the names; each name has one of the two.
func (l *Locker) try(ctx context.Context, names []string, o acquireOptions) ([]*Lease, []error) {
	leases, errs := make([]*Lease, len(names)), make([]error, len(names))
	l.mu.Lock()
	closed := l.closed
	l.mu.Unlock()
	if closed {
		for i := range errs {
			errs[i] = ErrClosed
		}
		return leases, errs
	}
	ttl := l.cfg.TTL
	if o.fixed > 0 {
		ttl = o.fixed
	}
	holds := make([]*hold, len(names))
	reqs := make([]acquireRequest, len(names))
	for i, name := range names {
		// Made before the request leaves, so that its end and its start cannot
		// pass each other.
		h := l.newHold(ctx, name, ttl)
		holds[i] = h
		reqs[i] = acquireRequest{name: name, owner: h.owner, depth: 1, ttl: ttl, hint: o.hints[name]}
	}
	sent := time.Now()
	var ghosts []*hold
	for i, r := range l.store.acquire(ctx, reqs) {
		h := holds[i]
		switch {
		case r.err != nil:
			errs[i] = r.err
			if !refused(r.err) {
				ghosts = append(ghosts, h)
			}
		case r.answer != isHeld:
			errs[i] = &BusyError{Name: h.name, Left: r.left}
		default:
			h.fence = r.fence
			if h.lease.Grant(watchdog.Terms{Sent: sent, Fixed: o.fixed > 0, MaxHold: l.cfg.MaxHold}) && ctx.Err() == nil {
				leases[i] = &h.outer
				continue
			}
			h.lease.End()
			ghosts = append(ghosts, h)
			errs[i] = fmt.Errorf("acquire lock %q: granted too late, after %v: %w", h.name, time.Since(sent).Round(time.Millisecond), lateCause(ctx, h))
		}
		h.cancel(errs[i])
	}
	l.withdraw(ctx, ghosts)
	return leases, errs
}

// lateCause says why a grant came too late to be used.
func lateCause(ctx context.Context, h *hold) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return &LostError{Name: h.name, Fence: h.fence, Reason: watchdog.Expired}
}

// withdraw frees, in the background, locks that may have been granted to owners
// that nobody has.
func (l *Locker) withdraw(ctx context.Context, ghosts []*hold) {
	if len(ghosts) == 0 {
		return
	}
	reqs := make([]releaseRequest, len(ghosts))
	for i, h := range ghosts {
		reqs[i] = releaseRequest{name: h.name, owner: h.owner}
	}
	run := func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseWithin)
		defer cancel()
		for _, r := range l.store.release(ctx, reqs) {
			if r.err != nil {
				l.cfg.Logger.Warn("lock not withdrawn, it frees itself within its TTL", "error", r.err)
			}
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed { // else Close may be waiting already
		l.background.Go(run)
	}
}
