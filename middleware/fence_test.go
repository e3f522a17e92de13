package middleware_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/jmoiron/sqlx"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/internal/devstack/devtest"
	"github.com/onceward/onceward/internal/devstack/redistest"
	"github.com/onceward/onceward/middleware"
	"github.com/onceward/onceward/reentrant"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kgo"
)

// What Redis alone cannot keep apart, Postgres does: here Redis forgets locks, in three
// ways.

// fenced is a chain as an application has it, on a Redis that can be changed for another
// one behind its back.
type fenced struct {
	t      *testing.T
	db     *sqlx.DB
	vip    *redistest.Proxy // the address that the application knows
	locker *reentrant.Locker
	box    middleware.Handler // without the lock
	chain  middleware.Handler
	fences []int64 // of each handler that ran
}

func newFenced(t *testing.T, addr string) *fenced {
	t.Helper()
	db, insert := effects(t, nil)
	f := &fenced{t: t, db: db, vip: redistest.NewProxy(t, addr, nil)}
	f.locker = f.newLocker()
	f.box = middleware.Inbox(newInbox(t, db), middleware.TxFunc(func(ctx context.Context, tx *sqlx.Tx, r *kgo.Record) error {
		if lease, ok := reentrant.FromContext(ctx, "a"); ok {
			f.fences = append(f.fences, lease.Fence())
		}
		return insert(ctx, tx, r)
	}))
	f.chain = middleware.Chain(f.box, middleware.Lock(f.locker))
	return f
}

// newLocker is the locker of another process.
func (f *fenced) newLocker() *reentrant.Locker {
	f.t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: f.vip.Addr})
	f.t.Cleanup(func() { rdb.Close() })
	l, err := reentrant.New(rdb, reentrant.Config{Prefix: "p", TTL: 12 * time.Second, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { l.Close() })
	return l
}

// zombie handles a message under a lease that somebody else may have by now.
func (f *fenced) zombie(lease *reentrant.Lease, value string) error {
	f.t.Helper()
	return middleware.Outcomes(f.box.Handle(reentrant.With(f.t.Context(), lease), messages(f.t, value)), 1)[0]
}

// applied handles a message by the chain, which must succeed, and returns the fence.
func (f *fenced) applied(value string) int64 {
	f.t.Helper()
	n := len(f.fences)
	if err := handle(f.t, f.chain, messages(f.t, value))[0]; err != nil {
		f.t.Fatalf("%s: %v", value, err)
	}
	if len(f.fences) != n+1 {
		f.t.Fatalf("%s: the handler ran %d times, want once", value, len(f.fences)-n)
	}
	return f.fences[n]
}

// wantStale checks who was refused, and because of whom.
func (f *fenced) wantStale(err error, token, stored int64) {
	f.t.Helper()
	var stale *inbox.StaleError
	if !errors.As(err, &stale) {
		f.t.Fatalf("the older fence got %v, want a StaleError", err)
	}
	if stale.Token != token || stale.Stored != stored || stale.Resource != "p:a" {
		f.t.Errorf("refused: %+v, want token %d of p:a because of %d", stale, token, stored)
	}
	if got := middleware.Classify(err); got != middleware.Uncharged {
		f.t.Errorf("class = %v, want %v", got, middleware.Uncharged)
	}
}

// Redis loses all it has: the lock, and the counter of fences.
func TestFence_CounterLost(t *testing.T) {
	server := devtest.OwnRedis(t)
	f := newFenced(t, server.Addr)
	old, err := f.locker.Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	server.Restart() // empty
	if keys := server.Client().Keys(t.Context(), "*").Val(); len(keys) != 0 {
		t.Fatalf("Redis still has %v", keys)
	}
	newer := f.applied("a:2")
	if newer <= old.Fence() {
		t.Errorf("fence %d after %d, must grow though the counter is lost", newer, old.Fence())
	}
	f.wantStale(f.zombie(old, "a:1"), old.Fence(), newer)
	wantEffects(t, f.db, map[string]int{"a:2": 1})
	f.applied("a:1") // by its next delivery
	f.applied("a:3")
	wantEffects(t, f.db, map[string]int{"a:1": 1, "a:2": 1, "a:3": 1})
}

// A replica that never heard of the lock becomes the master: two holders, each with a
// grant of a Redis that answered.
func TestFence_FailoverForgetsTheLock(t *testing.T) {
	master := devtest.OwnRedis(t)
	link := redistest.NewProxy(t, master.Addr, nil)
	_, port, err := net.SplitHostPort(link.Addr)
	if err != nil {
		t.Fatal(err)
	}
	replica := devtest.OwnRedis(t, "--replicaof", "127.0.0.1 "+port, "--repl-diskless-sync-delay", "0")
	f := newFenced(t, master.Addr)
	first := f.applied("a:0")
	inStep(t, master.Client(), replica.Client())

	link.Hold() // and nobody notices
	old, err := f.locker.Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	master.Kill()
	if err := replica.Client().Do(t.Context(), "REPLICAOF", "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
	f.vip.Turn(replica.Addr)
	second, err := f.newLocker().Acquire(t.Context(), "a")
	if err != nil {
		t.Fatalf("the new master knows of a lock that it never got: %v", err)
	}
	t.Logf("two holders: fence %d for another %v, fence %d for another %v", old.Fence(), old.Remaining(), second.Fence(), second.Remaining())
	if old.Fence() <= first || second.Fence() <= old.Fence() {
		t.Errorf("fences %d, %d, %d, must grow over the failover", first, old.Fence(), second.Fence())
	}

	// The old one is as good as the new one until that has claimed.
	if err := f.zombie(old, "a:1"); err != nil {
		t.Errorf("the old holder before the new one has claimed: %v", err)
	}
	if err := f.zombie(second, "a:2"); err != nil {
		t.Errorf("the new holder: %v", err)
	}
	f.wantStale(f.zombie(old, "a:3"), old.Fence(), second.Fence())
	if err := f.zombie(second, "a:4"); err != nil {
		t.Errorf("the new holder goes on: %v", err)
	}
	wantEffects(t, f.db, map[string]int{"a:0": 1, "a:1": 1, "a:2": 1, "a:4": 1})
	if err := second.Release(t.Context()); err != nil {
		t.Errorf("Release: %v", err)
	}
	<-old.Context().Done() // its next renewal finds out
	if err := context.Cause(old.Context()); !errors.Is(err, reentrant.ErrLost) {
		t.Errorf("cause for the old holder = %v, want %v", err, reentrant.ErrLost)
	}
	if third := f.applied("a:3"); third <= second.Fence() {
		t.Errorf("fence %d after %d, must grow", third, second.Fence())
	}
	wantEffects(t, f.db, map[string]int{"a:0": 1, "a:1": 1, "a:2": 1, "a:3": 1, "a:4": 1})
}

// inStep waits until the replica has all that the master has.
func inStep(t *testing.T, master, replica *redis.Client) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if strings.Contains(replica.Info(t.Context(), "replication").Val(), "master_link_status:up") &&
			master.Wait(t.Context(), 1, time.Second).Val() == 1 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the replica does not follow")
		}
	}
}

// The new master has neither the counter nor the time: its fences are lower than those that
// Postgres has seen. They are refused, until the hint gets past.
func TestFence_ClockLags(t *testing.T) {
	f := newFenced(t, devtest.OwnRedis(t).Addr)
	first := f.applied("a:1")
	lagging := miniredis.RunT(t)
	lagging.ClockTTL(true)
	lagging.SetTime(time.Now().Add(-time.Hour))
	f.vip.Turn(lagging.Addr())

	lower, err := f.newLocker().Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if lower.Fence() >= first {
		t.Fatalf("fence %d after %d: the clock was to lag", lower.Fence(), first)
	}
	f.wantStale(f.zombie(lower, "a:2"), lower.Fence(), first)
	if err := lower.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	refused := handle(t, f.chain, messages(t, "a:2"))[0]
	var stale *inbox.StaleError
	if !errors.As(refused, &stale) {
		t.Fatalf("the first try on the new master = %v, want a StaleError", refused)
	}
	f.wantStale(refused, lower.Fence()+1, first) // the counter goes on from the clock
	wantEffects(t, f.db, map[string]int{"a:1": 1})

	if got := f.applied("a:2"); got != first+1 { // the hint
		t.Errorf("fence of the second try = %d, want just above %d", got, first)
	}
	if got := f.applied("a:3"); got != first+2 { // and from there on by itself
		t.Errorf("the next fence = %d, want %d", got, first+2)
	}
	wantEffects(t, f.db, map[string]int{"a:1": 1, "a:2": 1, "a:3": 1})
}
