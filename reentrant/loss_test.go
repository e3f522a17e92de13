package reentrant_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/devstack/devtest"
	"github.com/onceward/onceward/internal/devstack/redistest"
	"github.com/onceward/onceward/reentrant"
	"github.com/onceward/onceward/watchdog"
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

// A server that is stopped, or out of reach, right after the acquire: every holder must
// know before the lock can be somebody else's.
func TestLease_ToldInTime(t *testing.T) {
	t.Run("server frozen", func(t *testing.T) {
		t.Parallel()
		server := devtest.OwnRedis(t)
		toldInTime(t, server.Client(), server.Client(), func() { server.Signal(syscall.SIGSTOP) }, func() { server.Signal(syscall.SIGCONT) })
	})
	t.Run("network swallows all", func(t *testing.T) {
		t.Parallel()
		server := devtest.OwnRedis(t)
		proxy := redistest.NewProxy(t, server.Addr, nil)
		rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr})
		t.Cleanup(func() { rdb.Close() })
		toldInTime(t, server.Client(), rdb, proxy.Hold, proxy.Release)
	})
}

// toldInTime holds 1000 locks through rdb and cuts it off. Redis itself is asked, directly,
// when the locks end.
func toldInTime(t *testing.T, direct, rdb *redis.Client, cut, mend func()) {
	const ttl = 10 * time.Second
	l := lockerOn(t, rdb, reentrant.Config{Prefix: "p", TTL: ttl})
	vigils := make([]*vigil, 1000)
	var wg sync.WaitGroup
	for i := range vigils {
		wg.Go(func() {
			if lease, err := l.Acquire(t.Context(), fmt.Sprint("order:", i)); err != nil {
				t.Error(err)
			} else {
				vigils[i] = watch(lease)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	ends := endsOf(t, direct)
	cut()
	defer mend()
	quiet := watchStalls()
	for _, v := range vigils {
		wantLost(t, v.Lease, reentrant.Unreachable)
		for v.ended.Load() == nil {
			runtime.Gosched() // the note is being taken
		}
	}
	stalled := quiet.end()
	closest := ttl
	for _, v := range vigils {
		spare := ends[v.Name()].Sub(*v.ended.Load())
		closest = min(closest, spare)
		if spare <= 0 && stalled < watchdog.Margin(ttl) {
			t.Errorf("the holder of %s was told %v after its key may have gone", v.Name(), -spare)
		}
	}
	t.Logf("all told at least %v before the end; the longest stall was %v", closest, stalled)
}

// endsOf returns when each lock ends at the earliest, by what Redis says.
func endsOf(t *testing.T, rdb *redis.Client) map[string]time.Time {
	t.Helper()
	keys := lockKeys(t, rdb, "p")
	asked := time.Now()
	ttls := make([]*redis.DurationCmd, len(keys))
	if _, err := rdb.Pipelined(t.Context(), func(pipe redis.Pipeliner) error {
		for i, key := range keys {
			ttls[i] = pipe.PTTL(t.Context(), key)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	ends := map[string]time.Time{}
	for i, key := range keys {
		_, name, _ := strings.Cut(key, ":lock:")
		ends[name] = asked.Add(ttls[i].Val())
	}
	return ends
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
