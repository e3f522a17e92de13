package reentrant_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/devstack/devtest"
	"github.com/onceward/onceward/reentrant"
	"github.com/redis/go-redis/v9"
)

const shortTTL = 600 * time.Millisecond

// wantLost waits for the end of the lease's context and checks its cause.
func wantLost(t *testing.T, lease *reentrant.Lease, want reentrant.Reason) {
	t.Helper()
	<-lease.Context().Done()
	var lost *reentrant.LostError
	if err := context.Cause(lease.Context()); !errors.As(err, &lost) || !errors.Is(err, reentrant.ErrLost) {
		t.Fatalf("cause = %v, want a LostError", err)
	}
	if lost.Reason != want || lost.Name != lease.Name() || lost.Fence != lease.Fence() {
		t.Errorf("cause = %+v, want reason %v of lock %q with fence %d", lost, want, lease.Name(), lease.Fence())
	}
}

func TestLease_IsKeptAlive(t *testing.T) {
	l, rdb := newLocker(t, reentrant.Config{TTL: shortTTL})
	lease := acquire(t, l, t.Context(), "a")
	key, _ := soleLock(t, rdb, prefixOf(t))
	for range 30 {
		// Each renewal is seen as a TTL that went up: wait for three TTLs' worth.
		if rdb.PTTL(t.Context(), key).Val() < 0 {
			t.Fatal("the lock is gone")
		}
		time.Sleep(shortTTL / 10)
	}
	if err := context.Cause(lease.Context()); err != nil {
		t.Errorf("context ended: %v", err)
	}
	release(t, lease)
}

func TestLease_Lost(t *testing.T) {
	tests := []struct {
		name string
		opts []reentrant.AcquireOption
		hurt func(t *testing.T, rdb *redis.Client, key string)
		want reentrant.Reason
	}{
		{
			"forgotten by the server", nil,
			func(t *testing.T, rdb *redis.Client, key string) { rdb.Del(t.Context(), key) },
			reentrant.Expired,
		},
		{
			"held by another", nil,
			func(t *testing.T, rdb *redis.Client, key string) {
				rdb.Del(t.Context(), key)
				rdb.HSet(t.Context(), key, "somebody", "1", "@fence", "1")
				rdb.PExpire(t.Context(), key, time.Minute)
			},
			reentrant.TakenOver,
		},
		{
			"granted anew to the same owner", nil, // by a late copy of its acquire
			func(t *testing.T, rdb *redis.Client, key string) { rdb.HSet(t.Context(), key, "@fence", "1") },
			reentrant.TakenOver,
		},
		{
			"not renewed",
			[]reentrant.AcquireOption{reentrant.FixedLease(shortTTL)},
			func(*testing.T, *redis.Client, string) {},
			reentrant.Expired,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			log := make(logs, 1)
			l, rdb := newLocker(t, reentrant.Config{TTL: shortTTL, Logger: slog.New(slog.NewTextHandler(log, nil))})
			lease := acquire(t, l, t.Context(), "a", tt.opts...)
			key, hash := soleLock(t, rdb, prefixOf(t))
			tt.hurt(t, rdb, key)
			wantLost(t, lease, tt.want)
			if err := lease.Release(t.Context()); !errors.Is(err, reentrant.ErrLost) {
				t.Errorf("Release of a lost lock = %v, want %v", err, reentrant.ErrLost)
			}
			line := <-log
			if !strings.Contains(line, "lock=a") || !strings.Contains(line, tt.want.String()) {
				t.Errorf("log is %q, want the lock and the cause", line)
			}
			for owner := range hash {
				if owner != "@fence" && strings.Contains(line, owner) {
					t.Errorf("log %q gives the owner away", line)
				}
			}
		})
	}
}

// Re-entry of a lock that the server forgot is a loss, never a new grant.
func TestEnter_NeverTakesAnew(t *testing.T) {
	l, rdb := newLocker(t, reentrant.Config{})
	lease := acquire(t, l, t.Context(), "a")
	key, _ := soleLock(t, rdb, prefixOf(t))
	if err := rdb.Del(t.Context(), key).Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Acquire(lease.Context(), "a"); !errors.Is(err, reentrant.ErrLost) {
		t.Fatalf("re-entry = %v, want lost", err)
	}
	wantLost(t, lease, reentrant.Expired)
	if keys := lockKeys(t, rdb, prefixOf(t)); len(keys) != 0 {
		t.Errorf("left in Redis: %v", keys)
	}
}

func TestLease_EndsAfterMaxHold(t *testing.T) {
	l, _ := newLocker(t, reentrant.Config{TTL: shortTTL, MaxHold: 2 * shortTTL})
	start := time.Now()
	lease := acquire(t, l, t.Context(), "a")
	wantLost(t, lease, reentrant.TooLong)
	if got := time.Since(start); got < 2*shortTTL {
		t.Errorf("ended after %v, want %v", got, 2*shortTTL)
	}
}

// A server that is stopped right after the acquire: the holder must know before
// the lock can be somebody else's.
func TestLease_ServerFrozen(t *testing.T) {
	server := devtest.OwnRedis(t)
	l := lockerOn(t, server.Client(), reentrant.Config{TTL: time.Second})
	sent := time.Now()
	leases := make([]*reentrant.Lease, 100)
	for i := range leases {
		leases[i] = acquire(t, l, t.Context(), fmt.Sprint("order:", i))
	}
	server.Signal(syscall.SIGSTOP)
	defer server.Signal(syscall.SIGCONT)
	var wg sync.WaitGroup
	for _, lease := range leases {
		wg.Go(func() {
			<-lease.Context().Done()
			// The first key was set after sent, so no key has ended before this.
			if got := time.Since(sent); got >= time.Second {
				t.Errorf("told after %v, the key may be gone after %v", got, time.Second)
			}
			wantLost(t, lease, reentrant.Unreachable)
		})
	}
	wg.Wait()
}

func TestLocker_Close(t *testing.T) {
	l, rdb := newLocker(t, reentrant.Config{})
	lease := acquire(t, l, t.Context(), "a")
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() { l.Close() })
	}
	wg.Wait()
	if got := context.Cause(lease.Context()); got != reentrant.ErrClosed {
		t.Errorf("cause = %v, want %v", got, reentrant.ErrClosed)
	}
	if _, err := l.Acquire(t.Context(), "b"); !errors.Is(err, reentrant.ErrClosed) {
		t.Errorf("Acquire after Close = %v, want %v", err, reentrant.ErrClosed)
	}
	release(t, lease) // what is held can still be given back
	if keys := lockKeys(t, rdb, prefixOf(t)); len(keys) != 0 {
		t.Errorf("left in Redis: %v", keys)
	}
}

func TestAcquire_ServerUnreachable(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
	defer rdb.Close()
	l := lockerOn(t, rdb, reentrant.Config{})
	if _, err := l.Acquire(t.Context(), "a"); err == nil || !strings.Contains(err.Error(), `acquire lock "a"`) || !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("Acquire = %v, want an error that names the lock and the server", err)
	}
}
