package reentrant_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/devstack/devtest"
	"github.com/onceward/onceward/reentrant"
)

// A script counts in floating point: above 2^53 a fence would stop growing. So a hint
// that leads there is refused, before anything is asked.
func TestFence_HintTooHigh(t *testing.T) {
	l, rdb := newLocker(t, reentrant.Config{})
	for _, hint := range []int64{1 << 53, 1<<53 + 1, 1<<63 - 1, -1} {
		hints := reentrant.FenceHints(map[string]int64{"a": hint})
		_, acquired := l.Acquire(t.Context(), "a", hints)
		_, each := l.AcquireEach(t.Context(), []string{"a"}, hints)
		for _, err := range []error{acquired, each[0]} {
			if err == nil || !strings.Contains(err.Error(), `"a"`) || errors.Is(err, reentrant.ErrBusy) {
				t.Errorf("hint %d: %v, want an error that names the lock", hint, err)
			}
		}
	}
	if keys := rdb.Keys(t.Context(), prefixOf(t)+":*").Val(); len(keys) > 1 { // the settings
		t.Errorf("in Redis: %v, want nothing to have been asked", keys)
	}
	// The highest that is let pass leaves room for ages.
	lease := acquire(t, l, t.Context(), "a", reentrant.FenceHints(map[string]int64{"a": 1 << 52}))
	release(t, lease)
	next := acquire(t, l, t.Context(), "a")
	if lease.Fence() != 1<<52 || next.Fence() != 1<<52+1 {
		t.Errorf("fences = %d and %d, want 2^52 and one more", lease.Fence(), next.Fence())
	}
	release(t, next)
}

// Whatever is lost of Redis in between, and however a hold ends: each grant has a higher
// fence than the one before.
func TestFence_GrowsThroughLosses(t *testing.T) {
	server := devtest.OwnRedis(t)
	rdb := server.Client()
	l := lockerOn(t, rdb, reentrant.Config{Prefix: "p", TTL: 300 * time.Millisecond, Shards: 1})
	var last int64
	take := func() *reentrant.Lease {
		t.Helper()
		lease := acquire(t, l, t.Context(), "a", reentrant.FixedLease(300*time.Millisecond))
		if lease.Fence() <= last {
			t.Errorf("fence %d after %d", lease.Fence(), last)
		}
		last = lease.Fence()
		return lease
	}
	for _, step := range []struct {
		name string
		do   func(lease *reentrant.Lease)
	}{
		{"released", func(lease *reentrant.Lease) { release(t, lease) }},
		{"over", func(lease *reentrant.Lease) { <-lease.Context().Done() }},
		{"broken", func(lease *reentrant.Lease) {
			if err := l.Inspector().Break(t.Context(), "a", lease.Fence()); err != nil {
				t.Error(err)
			}
		}},
		{"lock lost", func(*reentrant.Lease) { rdb.Del(t.Context(), "p:{0}:lock:a") }},
		{"counter lost", func(lease *reentrant.Lease) { rdb.Del(t.Context(), "p:{0}:fence"); release(t, lease) }},
		{"all lost", func(*reentrant.Lease) { rdb.FlushAll(t.Context()) }},
		{"server lost", func(*reentrant.Lease) { server.Restart() }},
	} {
		lease := take()
		step.do(lease)
		t.Logf("%s: %d", step.name, lease.Fence())
	}
	release(t, take())
}

// The highest hint that is let pass leaves room for the fence to grow.
func TestFence_HintLeavesRoom(t *testing.T) {
	l, _ := newLocker(t, reentrant.Config{})
	var last int64
	for range 3 {
		lease, err := l.Acquire(t.Context(), "a", reentrant.FenceHints(map[string]int64{"a": 1<<53 - 1}))
		if err != nil {
			return // refused: right
		}
		if lease.Fence() <= last {
			t.Errorf("fence %d after %d, must grow", lease.Fence(), last)
		}
		last = lease.Fence()
		release(t, lease)
	}
}

// A counter that is not a number is as good as none.
func TestFence_CounterIsGarbage(t *testing.T) {
	l, rdb := newLocker(t, reentrant.Config{Shards: 1})
	first := acquire(t, l, t.Context(), "a")
	release(t, first)
	rdb.Set(t.Context(), prefixOf(t)+":{0}:fence", "garbage", time.Minute)
	next, err := l.Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if next.Fence() <= first.Fence() {
		t.Errorf("fence %d after %d, must grow", next.Fence(), first.Fence())
	}
	release(t, next)
}
