package reentrant

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward/watchdog"
	"github.com/redis/go-redis/v9"
)

// A Locker hands out locks. Create it with [New]; it is safe for concurrent use.
type Locker struct {
	cfg    Config
	store  Store
	dog    *watchdog.Watchdog
	owners *owners

	// Round trips that single callers share.
	acquires *calls[AcquireRequest, AcquireReply]
	releases *calls[ReleaseRequest, HoldReply]

	life context.Context // ends with cause ErrClosed
	end  context.CancelCauseFunc

	mu         sync.Mutex // guards what follows
	closed     bool
	lines      map[string]*line
	background sync.WaitGroup // withdrawals; nothing is added once closed

	listening listening
	agreed    atomic.Bool // with the other users of the store, see Check
}

// New returns a Locker that keeps its locks in Redis (at least 6.2): a single
// server, behind Sentinel, or a cluster. It does no I/O and does not close rdb.
func New(rdb redis.UniversalClient, cfg Config) (*Locker, error) {
	s, err := NewRedisStore(rdb, cfg)
	if err != nil {
		return nil, err
	}
	return NewLocker(s, cfg)
}

// NewLocker returns a Locker that keeps its locks in s. It does no I/O.
func NewLocker(s Store, cfg Config) (*Locker, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("reentrant: %w", err)
	}
	if s == nil {
		return nil, errors.New("reentrant: Store is nil")
	}
	l := &Locker{cfg: cfg, store: s, owners: newOwners(), lines: map[string]*line{}}
	l.listening.turn = make(chan struct{}, 1)
	l.life, l.end = context.WithCancelCause(context.Background())
	// What is shared by several callers does not end with one of them. The
	// client's own time-outs bound it.
	l.acquires = newCalls(func(reqs []AcquireRequest) []AcquireReply { return s.Acquire(context.Background(), reqs) })
	l.releases = newCalls(func(reqs []ReleaseRequest) []HoldReply { return s.Release(context.Background(), reqs) })
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
	reqs := make([]RenewRequest, len(leases))
	for i, lease := range leases {
		h := lease.Holder().(*hold)
		reqs[i] = RenewRequest{Name: h.name, Owner: h.owner, Fence: h.fence, TTL: lease.TTL()}
	}
	verdicts := make([]watchdog.Verdict, len(leases))
	for i, r := range l.store.Renew(ctx, reqs) {
		switch r.Answer {
		case Held:
			verdicts[i] = watchdog.Held
		case Gone:
			verdicts[i] = watchdog.Gone
		case Busy:
			verdicts[i] = watchdog.Taken
		}
	}
	return verdicts
}

// Acquire takes the named lock, waiting while another owner holds it, until ctx
// ends or for as long as [WaitAtMost] says. The lock is kept alive until its
// Release. Those who wait are served in the order in which their processes began
// to wait, and within a process in the order of their calls.
//
// If ctx carries a lease of the same lock, Acquire enters it once more: depth +
// 1, same fence, to be given back by a Release of its own. If ctx carries
// leases of other locks only, it tries once and does not wait, unless
// WaitAtMost says so: two holders that wait for each other's lock would wait for
// ever.
//
// It returns as soon as ctx ends, whatever Redis does. It returns a
// [*BusyError] if somebody else holds the lock, together with the cause of ctx if
// that ended the wait; a [*LostError] if the lock that is re-entered was lost;
// [ErrClosed]; an error that matches [ErrName]. After any other error the outcome
// is not known: what may have been granted is withdrawn in the background, and
// frees itself within the TTL at the latest.
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
	if err := l.usable(ctx); err != nil {
		return nil, fmt.Errorf("acquire lock %q: %w", name, err)
	}
	if o.wait < 0 && find(ctx, func(*Lease) bool { return true }) != nil {
		o.wait = 0
	}
	if o.wait == 0 {
		return l.tryOne(ctx, name, o)
	}
	return l.wait(ctx, name, o)
}

// usable says why the locker cannot be used, if so.
func (l *Locker) usable(ctx context.Context) error {
	switch {
	case l.life.Err() != nil:
		return ErrClosed
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return l.agree(ctx)
}

// Do runs fn under the named lock: acquire, fn with the lease's context, release.
// It returns the error of Acquire, or those of fn and Release. The context tells fn
// when to stop: after a lost lock it must not go on.
func (l *Locker) Do(ctx context.Context, name string, fn func(ctx context.Context) error, opts ...AcquireOption) (err error) {
	lease, err := l.Acquire(ctx, name, opts...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lease.Release(ctx)) }()
	return fn(lease.Context())
}

// Close ends the contexts of all leases with cause [ErrClosed], ends all waiting,
// stops renewing and waits for withdrawals under way, a few seconds at most. Leases
// can still be released; what is not frees itself within its TTL. The Redis client
// stays open. Close may be called more than once.
func (l *Locker) Close() error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.end(ErrClosed)
	l.dog.Close()
	l.background.Wait()
	l.listening.close()
	return nil
}

// carriedBy returns the lease of the named lock of this locker in ctx.
func (l *Locker) carriedBy(ctx context.Context, name string) *Lease {
	return find(ctx, func(lease *Lease) bool { return lease.hold.locker == l && lease.hold.name == name })
}

// ttl returns the length of the leases that o asks for.
func (l *Locker) ttl(o acquireOptions) time.Duration {
	if o.fixed > 0 {
		return o.fixed
	}
	return l.cfg.TTL
}
