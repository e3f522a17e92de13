package reentrant_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/devstack/devtest"
	"github.com/onceward/onceward/reentrant"
	"github.com/redis/go-redis/v9"
)

// hooked is a store whose calls pass through hooks.
type hooked struct {
	reentrant.Store
	acquire func(next func() []reentrant.AcquireReply, reqs []reentrant.AcquireRequest) []reentrant.AcquireReply
	release func(next func() []reentrant.HoldReply, reqs []reentrant.ReleaseRequest) []reentrant.HoldReply
	woken   func(next func(reentrant.Handover), h reentrant.Handover)
}

func (s *hooked) Acquire(ctx context.Context, reqs []reentrant.AcquireRequest) []reentrant.AcquireReply {
	next := func() []reentrant.AcquireReply { return s.Store.Acquire(ctx, reqs) }
	if s.acquire == nil {
		return next()
	}
	return s.acquire(next, reqs)
}

func (s *hooked) Release(ctx context.Context, reqs []reentrant.ReleaseRequest) []reentrant.HoldReply {
	next := func() []reentrant.HoldReply { return s.Store.Release(ctx, reqs) }
	if s.release == nil {
		return next()
	}
	return s.release(next, reqs)
}

func (s *hooked) Listen(ctx context.Context, client string, woken func(reentrant.Handover)) (func(), error) {
	return s.Store.Listen(ctx, client, func(h reentrant.Handover) {
		if s.woken == nil {
			woken(h)
		} else {
			s.woken(woken, h)
		}
	})
}

// waitingRoom is a lock that several lockers contend for.
type waitingRoom struct {
	t     *testing.T
	rdb   *redis.Client
	cfg   reentrant.Config
	store *reentrant.RedisStore
}

func newWaitingRoom(t *testing.T, cfg reentrant.Config) *waitingRoom {
	t.Helper()
	cfg.Prefix = prefixOf(t)
	rdb := devtest.Redis(t)
	lockerOn(t, rdb, cfg) // removes the keys at the end
	store, err := reentrant.NewRedisStore(rdb, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return &waitingRoom{t: t, rdb: rdb, cfg: cfg, store: store}
}

// locker returns a further client of the lock.
func (r *waitingRoom) locker(hook *hooked) *reentrant.Locker {
	r.t.Helper()
	if hook == nil {
		return lockerOn(r.t, r.rdb, r.cfg)
	}
	hook.Store = r.store
	l, err := reentrant.NewLocker(hook, r.cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { l.Close() })
	return l
}

// seats waits until that many processes wait for the lock.
func (r *waitingRoom) seats(n int) {
	r.t.Helper()
	r.until(fmt.Sprintf("%d processes wait", n), func(i reentrant.Info) bool { return len(i.Waiting) == n })
}

func (r *waitingRoom) until(what string, ok func(reentrant.Info) bool) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 20*time.Second)
	defer cancel()
	for {
		info, err := r.store.Inspect(ctx, "a")
		if err != nil {
			r.t.Fatalf("waiting until %s: %v (last seen: %+v)", what, err, info)
		}
		if ok(info) {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// A grant is what a waiter got.
type grant struct {
	lease *reentrant.Lease
	err   error
	after time.Duration
}

func acquireLater(ctx context.Context, l *reentrant.Locker) <-chan grant {
	got := make(chan grant, 1)
	start := time.Now()
	go func() {
		lease, err := l.Acquire(ctx, "a")
		got <- grant{lease, err, time.Since(start)}
	}()
	return got
}

func (r *waitingRoom) want(got <-chan grant) grant {
	r.t.Helper()
	g := <-got
	if g.err != nil {
		r.t.Fatal(g.err)
	}
	return g
}

func TestWait_HandedOver(t *testing.T) {
	r := newWaitingRoom(t, reentrant.Config{})
	holder := acquire(t, r.locker(nil), t.Context(), "a")
	next := acquireLater(t.Context(), r.locker(nil))
	r.seats(1)
	sent := time.Now()
	release(t, holder)
	g := r.want(next)
	if took := time.Since(sent); took > 500*time.Millisecond {
		t.Errorf("handed over after %v: the news was not heard", took)
	}
	if g.lease.Fence() <= holder.Fence() {
		t.Errorf("fence %d after %d, must grow", g.lease.Fence(), holder.Fence())
	}
	// What was handed over for a short time is renewed before a third of that is over.
	r.until("the lease has its full length", func(i reentrant.Info) bool { return i.Left > 2*reentrant.HandoverTTL })
	for g.lease.Remaining() <= reentrant.HandoverTTL { // until the answer is there
		if err := context.Cause(g.lease.Context()); err != nil {
			t.Fatal(err)
		}
	}
	release(t, g.lease)
	if keys := lockKeys(t, r.rdb, r.cfg.Prefix); len(keys) != 0 {
		t.Errorf("left in Redis: %v", keys)
	}
}

// The news of a handover may get lost: the next question finds out.
func TestWait_LostWakeUp(t *testing.T) {
	r := newWaitingRoom(t, reentrant.Config{})
	lost := make(chan reentrant.Handover, 1)
	l := r.locker(&hooked{woken: func(_ func(reentrant.Handover), h reentrant.Handover) { lost <- h }})
	holder := acquire(t, r.locker(nil), t.Context(), "a")
	next := acquireLater(t.Context(), l)
	r.seats(1)
	release(t, holder)
	g := r.want(next)
	select {
	case h := <-lost:
		if h.Name != "a" {
			t.Errorf("the news is of lock %q, want a", h.Name)
		}
	default:
		t.Error("there was no news to lose")
	}
	release(t, g.lease)
}

func TestWait_KeyDeleted(t *testing.T) {
	r := newWaitingRoom(t, reentrant.Config{})
	acquire(t, r.locker(nil), t.Context(), "a")
	next := acquireLater(t.Context(), r.locker(nil))
	r.seats(1)
	for _, key := range lockKeys(t, r.rdb, r.cfg.Prefix) {
		if err := r.rdb.Del(t.Context(), key).Err(); err != nil {
			t.Fatal(err)
		}
	}
	release(t, r.want(next).lease)
}

func TestWait_SubscriptionKilled(t *testing.T) {
	server := devtest.OwnRedis(t)
	rdb := server.Client()
	r := &waitingRoom{t: t, rdb: rdb, cfg: reentrant.Config{Prefix: "killed"}}
	r.store, _ = reentrant.NewRedisStore(rdb, r.cfg)
	l := r.locker(nil)
	for range 2 { // the second time it is heard again, or at least served
		holder := acquire(t, r.locker(nil), t.Context(), "a")
		next := acquireLater(t.Context(), l)
		r.seats(1)
		killed, err := rdb.ClientKillByFilter(t.Context(), "TYPE", "pubsub").Result()
		if err != nil || killed == 0 {
			t.Fatalf("killed %d subscriptions: %v, want at least one", killed, err)
		}
		release(t, holder)
		release(t, r.want(next).lease)
	}
}

// The head of the queue died: who comes after it is served once the handover to
// the dead one has ended.
func TestWait_DeadHead(t *testing.T) {
	r := newWaitingRoom(t, reentrant.Config{TTL: 600 * time.Millisecond})
	holder := acquire(t, r.locker(nil), t.Context(), "a")
	dead := []reentrant.AcquireRequest{{Name: "a", Owner: "dead.1", Depth: 1, TTL: r.cfg.TTL, Seat: time.Minute}}
	if reply := r.store.Acquire(t.Context(), dead)[0]; reply.Answer != reentrant.Busy {
		t.Fatalf("the dead one got %+v, want a seat", reply)
	}
	next := acquireLater(t.Context(), r.locker(nil))
	r.seats(2)
	release(t, holder)
	r.until("the lock is handed to the dead one", func(i reentrant.Info) bool { return i.Held() && len(i.Waiting) == 1 })
	g := r.want(next)
	if g.after < r.cfg.TTL {
		t.Errorf("served after %v, though the dead one held it for %v", g.after, r.cfg.TTL)
	}
	release(t, g.lease)
}

// Who gives up at the moment when it is given the lock gives it back.
func TestWait_GivesUpWhileGiven(t *testing.T) {
	r := newWaitingRoom(t, reentrant.Config{})
	given := make(chan struct{})
	first := r.locker(&hooked{woken: func(func(reentrant.Handover), reentrant.Handover) { close(given) }}) // hears it too late
	holder := acquire(t, r.locker(nil), t.Context(), "a")
	ctx, cancel := context.WithCancel(t.Context())
	quitter := acquireLater(ctx, first)
	r.seats(1)
	next := acquireLater(t.Context(), r.locker(nil))
	r.seats(2)
	release(t, holder)
	<-given
	cancel()
	// It may have found out by itself before: then it gives back what it got.
	if g := <-quitter; g.err == nil {
		release(t, g.lease)
	} else if !errors.Is(g.err, context.Canceled) {
		t.Errorf("gave up with %v, want the cause", g.err)
	}
	release(t, r.want(next).lease)
	r.until("nothing is left", func(i reentrant.Info) bool { return !i.Held() && len(i.Waiting) == 0 })
}

func TestWait_HolderDies(t *testing.T) {
	r := newWaitingRoom(t, reentrant.Config{})
	const lease = 500 * time.Millisecond
	sent := time.Now()
	acquire(t, r.locker(nil), t.Context(), "a", reentrant.FixedLease(lease)) // and nobody releases it
	g := r.want(acquireLater(t.Context(), r.locker(nil)))
	if got := time.Since(sent); got < lease {
		t.Errorf("served after %v, though the lease lasts %v", got, lease)
	}
	release(t, g.lease)
}

// 50 waiters in 5 processes are served in turn: within a process in the order of
// their calls, and no process twice while another waits.
func TestWait_ServedInOrder(t *testing.T) {
	r := newWaitingRoom(t, reentrant.Config{})
	const processes, each = 5, 10
	holder := acquire(t, r.locker(nil), t.Context(), "a")
	type turn struct{ process, n int }
	var order []turn // by who holds the lock
	var wg sync.WaitGroup
	for p := range processes {
		l := r.locker(nil)
		for n := range each {
			entered := make(chan struct{})
			wg.Go(func() {
				close(entered)
				lease, err := l.Acquire(t.Context(), "a")
				if err != nil {
					t.Error(err)
					return
				}
				order = append(order, turn{p, n})
				// The next one of this process has its seat before the lock goes on.
				waiting := processes
				if left := processes*each - len(order); left < processes {
					waiting = left
				}
				r.seats(waiting)
				if err := lease.Release(t.Context()); err != nil {
					t.Error(err)
				}
			})
			<-entered
			if n == 0 {
				r.seats(p + 1) // seats are taken in the order of the processes
			} else {
				r.queued(l, n)
			}
		}
	}
	release(t, holder)
	wg.Wait()
	if len(order) != processes*each {
		t.Fatalf("%d were served, want %d", len(order), processes*each)
	}
	for i, got := range order {
		if want := (turn{i % processes, i / processes}); got != want {
			t.Errorf("turn %d was %+v, want %+v", i, got, want)
		}
	}
}

// A reply that is late keeps nobody: Acquire ends with its context, and what comes
// later is given back.
func TestAcquire_CancelledWhileReplyIsLate(t *testing.T) {
	for _, tt := range []struct {
		name    string
		acquire func(ctx context.Context, l *reentrant.Locker) error
	}{
		{"waiting", func(ctx context.Context, l *reentrant.Locker) error { _, err := l.Acquire(ctx, "a"); return err }},
		{"once", func(ctx context.Context, l *reentrant.Locker) error {
			_, err := l.Acquire(ctx, "a", reentrant.WaitAtMost(0))
			return err
		}},
		{"each", func(ctx context.Context, l *reentrant.Locker) error {
			_, errs := l.AcquireEach(ctx, []string{"a", "b"})
			return errs[0]
		}},
		{"bounded", func(ctx context.Context, l *reentrant.Locker) error {
			_, err := l.Acquire(context.WithoutCancel(ctx), "a", reentrant.WaitAtMost(20*time.Millisecond))
			return err
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newWaitingRoom(t, reentrant.Config{})
			granted, reply, released := make(chan struct{}), make(chan struct{}), make(chan struct{}, 2)
			l := r.locker(&hooked{
				acquire: func(next func() []reentrant.AcquireReply, _ []reentrant.AcquireRequest) []reentrant.AcquireReply {
					replies := next()
					close(granted)
					<-reply
					return replies
				},
				release: func(next func() []reentrant.HoldReply, reqs []reentrant.ReleaseRequest) []reentrant.HoldReply {
					defer func() {
						for range reqs {
							released <- struct{}{}
						}
					}()
					return next()
				},
			})
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- tt.acquire(ctx, l) }()
			<-granted
			if n := len(lockKeys(t, r.rdb, r.cfg.Prefix)); n == 0 {
				t.Fatal("nothing was granted")
			}
			cancel()
			if err := <-ended; err == nil { // though there is no reply yet
				t.Error("Acquire succeeded without a reply")
			}
			keys := len(lockKeys(t, r.rdb, r.cfg.Prefix))
			close(reply)
			for range keys {
				<-released
			}
			if keys := lockKeys(t, r.rdb, r.cfg.Prefix); len(keys) != 0 {
				t.Errorf("left in Redis: %v", keys)
			}
		})
	}
}

func TestWait_EndsWithClose(t *testing.T) {
	r := newWaitingRoom(t, reentrant.Config{})
	holder := acquire(t, r.locker(nil), t.Context(), "a")
	l := r.locker(nil)
	first := acquireLater(t.Context(), l)
	r.seats(1)
	second := acquireLater(t.Context(), l)
	r.queued(l, 1)
	l.Close()
	for _, got := range []<-chan grant{first, second} {
		if g := <-got; !errors.Is(g.err, reentrant.ErrClosed) {
			t.Errorf("waiting ended with %v, want %v", g.err, reentrant.ErrClosed)
		}
	}
	release(t, holder)
}

func TestAcquireAll(t *testing.T) {
	l, rdb := newLocker(t, reentrant.Config{})
	other := acquire(t, l, t.Context(), "b")
	if _, err := l.AcquireAll(t.Context(), []string{"c", "b", "a"}, reentrant.WaitAtMost(30*time.Millisecond)); !errors.Is(err, reentrant.ErrBusy) {
		t.Errorf("AcquireAll with one that is busy = %v, want busy", err)
	}
	if n := len(lockKeys(t, rdb, prefixOf(t))); n != 1 {
		t.Errorf("%d locks held after it gave up, want the other's alone", n)
	}
	time.AfterFunc(30*time.Millisecond, func() { other.Release(context.WithoutCancel(t.Context())) })
	leases, err := l.AcquireAll(t.Context(), []string{"c", "b", "a", "b"})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"c", "b", "a", "b"} {
		if got := leases[i].Name(); got != want {
			t.Errorf("lease %d is of %q, want %q", i, got, want)
		}
	}
	for _, err := range l.ReleaseEach(t.Context(), leases[:3]) {
		if err != nil {
			t.Error(err)
		}
	}

	// Many who want the same locks in other orders: nobody waits for ever.
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			for range 5 {
				names := []string{"a", "b", "c"}
				names[0], names[i%3] = names[i%3], names[0]
				leases, err := l.AcquireAll(t.Context(), names)
				if err != nil {
					t.Error(err)
					return
				}
				l.ReleaseEach(t.Context(), leases)
			}
		})
	}
	wg.Wait()
}

func TestInspect(t *testing.T) {
	r := newWaitingRoom(t, reentrant.Config{})
	l := r.locker(nil)
	before := time.Now().Add(-time.Second)
	outer := acquire(t, l, t.Context(), "a")
	inner := acquire(t, l, outer.Context(), "a")
	next := acquireLater(t.Context(), r.locker(nil))
	r.seats(1)
	info, err := l.Inspector().Inspect(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if info.Name != "a" || info.Owner != outer.OwnerDigest() || info.Depth != 2 || info.Fence != outer.Fence() ||
		info.Left <= 25*time.Second || info.Since.Before(before) || info.Since.After(time.Now().Add(time.Second)) || len(info.Waiting) != 1 {
		t.Errorf("Inspect = %+v", info)
	}
	if free, err := l.Inspector().Inspect(t.Context(), "free"); err != nil || free.Held() {
		t.Errorf("Inspect of a free lock = %+v, %v", free, err)
	}

	// A grant is broken by its fence: not a newer one.
	if err := l.Inspector().Break(t.Context(), "a", outer.Fence()-1); !errors.Is(err, reentrant.ErrNotHeld) {
		t.Errorf("Break with another fence = %v, want %v", err, reentrant.ErrNotHeld)
	}
	if err := l.Inspector().Break(t.Context(), "a", outer.Fence()); err != nil {
		t.Fatal(err)
	}
	g := r.want(next) // it is handed to who waits
	if _, err := l.Acquire(inner.Context(), "a"); !errors.Is(err, reentrant.ErrLost) {
		t.Errorf("re-entry of a broken lock = %v, want lost", err)
	}
	release(t, g.lease)
}

func TestList(t *testing.T) {
	l, rdb := newLocker(t, reentrant.Config{})
	names := []string{"order:[1]", "other:1"}
	for i := range 1200 {
		names = append(names, fmt.Sprintf("order:%d", i))
	}
	leases, errs := l.AcquireEach(t.Context(), names)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	defer l.ReleaseEach(t.Context(), leases)
	seen := map[string]bool{}
	for info, err := range l.Inspector().List(t.Context(), "order:") {
		if err != nil {
			t.Fatal(err)
		}
		seen[info.Name] = true
	}
	if len(seen) != 1201 || seen["other:1"] {
		t.Errorf("listed %d locks, want 1201", len(seen))
	}
	for info, err := range l.Inspector().List(t.Context(), "order:[") {
		if err != nil || info.Name != "order:[1]" {
			t.Errorf("listed %q, %v, want only the name with the bracket", info.Name, err)
		}
	}
	for range l.Inspector().List(t.Context(), "") {
		break // it can be left early
	}
	rdb.Close()
	for _, err := range l.Inspector().List(t.Context(), "") {
		if err == nil {
			t.Error("a list without a server")
		}
	}
}

// queued waits until n callers wait behind the head of the locker's line.
func (r *waitingRoom) queued(l *reentrant.Locker, n int) {
	r.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); l.Queued("a") != n; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			r.t.Fatalf("%d wait in line, want %d", l.Queued("a"), n)
		}
	}
}

// deaf is a store that cannot listen in the time it is given.
type deaf struct{ reentrant.Store }

func (deaf) Listen(ctx context.Context, _ string, _ func(reentrant.Handover)) (func(), error) {
	<-ctx.Done()
	return nil, errors.New("read: i/o timeout") // as a client puts it whose deadline was that of ctx
}

// Time to wait that ends while the locker begins to listen has ended all the same.
func TestAcquire_WaitEndsWhileListening(t *testing.T) {
	rdb := devtest.Redis(t)
	held := acquire(t, lockerOn(t, rdb, reentrant.Config{}), t.Context(), "a")
	l, err := reentrant.NewLocker(deaf{storeAt(t, rdb, prefixOf(t))}, reentrant.Config{Prefix: prefixOf(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	if _, err := l.Acquire(t.Context(), "a", reentrant.WaitAtMost(time.Second)); !errors.Is(err, reentrant.ErrBusy) {
		t.Errorf("Acquire = %v, want busy", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	time.AfterFunc(100*time.Millisecond, func() { cancel(enough) })
	if _, err := l.Acquire(ctx, "a"); !errors.Is(err, enough) {
		t.Errorf("Acquire that was cancelled = %v, want %v", err, enough)
	}
	release(t, held)
}
