package reentrant_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward/reentrant"
)

func TestAcquire_TakesAndFrees(t *testing.T) {
	l, rdb := newLocker(t, reentrant.Config{})
	lease := acquire(t, l, t.Context(), "order:1001")

	key, hash := soleLock(t, rdb, prefixOf(t))
	if got := depthOf(t, hash); got != "1" {
		t.Errorf("depth in Redis = %s, want 1", got)
	}
	if ttl := rdb.PTTL(t.Context(), key).Val(); ttl <= 25*time.Second || ttl > reentrant.DefaultTTL {
		t.Errorf("TTL in Redis = %v, want nearly %v", ttl, reentrant.DefaultTTL)
	}
	if left := lease.Remaining(); left <= 25*time.Second || left > reentrant.DefaultTTL-time.Second {
		t.Errorf("Remaining = %v, want nearly %v", left, reentrant.DefaultTTL-time.Second)
	}
	if lease.Context().Err() != nil {
		t.Errorf("context of a held lease ended: %v", context.Cause(lease.Context()))
	}
	release(t, lease)
	if keys := lockKeys(t, rdb, prefixOf(t)); len(keys) != 0 {
		t.Errorf("left in Redis after the release: %v", keys)
	}
	if got := context.Cause(lease.Context()); got != reentrant.ErrReleased {
		t.Errorf("cause after the release = %v, want %v", got, reentrant.ErrReleased)
	}
	if got := lease.Remaining(); got != 0 {
		t.Errorf("Remaining after the release = %v, want 0", got)
	}
	if err := lease.Release(t.Context()); !errors.Is(err, reentrant.ErrReleased) {
		t.Errorf("second Release = %v, want %v", err, reentrant.ErrReleased)
	}
}

func TestAcquire_Reenters(t *testing.T) {
	l, rdb := newLocker(t, reentrant.Config{})
	outer := acquire(t, l, t.Context(), "a")
	middle := acquire(t, l, outer.Context(), "a")
	inner := acquire(t, l, middle.Context(), "a")

	_, hash := soleLock(t, rdb, prefixOf(t))
	if got := depthOf(t, hash); got != "3" {
		t.Errorf("depth in Redis = %s, want 3", got)
	}
	if inner.Fence() != outer.Fence() {
		t.Errorf("fence of the re-entry = %d, want that of the grant, %d", inner.Fence(), outer.Fence())
	}
	release(t, inner)
	if context.Cause(inner.Context()) != reentrant.ErrReleased || middle.Context().Err() != nil {
		t.Errorf("after the release of the inner: inner %v, middle %v, want only the inner ended", context.Cause(inner.Context()), middle.Context().Err())
	}
	release(t, outer) // in any order: the lock is free with the last one
	_, hash = soleLock(t, rdb, prefixOf(t))
	if got := depthOf(t, hash); got != "1" {
		t.Errorf("depth in Redis = %s, want 1", got)
	}
	release(t, middle)
	if keys := lockKeys(t, rdb, prefixOf(t)); len(keys) != 0 {
		t.Errorf("left in Redis after the last release: %v", keys)
	}
	if _, err := l.Acquire(context.WithoutCancel(middle.Context()), "a"); !errors.Is(err, reentrant.ErrReleased) {
		t.Errorf("re-entry of a released lock = %v, want %v", err, reentrant.ErrReleased)
	}
}

func TestAcquire_Excludes(t *testing.T) {
	l, _ := newLocker(t, reentrant.Config{})
	holder := acquire(t, l, t.Context(), "a")
	_, err := l.Acquire(t.Context(), "a", reentrant.WaitAtMost(0))
	var busy *reentrant.BusyError
	if !errors.As(err, &busy) || !errors.Is(err, reentrant.ErrBusy) {
		t.Fatalf("Acquire of a held lock = %v, want a BusyError", err)
	}
	if busy.Name != "a" || busy.Left <= 25*time.Second {
		t.Errorf("BusyError = %+v, want name a and nearly the whole TTL left", busy)
	}

	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("enough")
	time.AfterFunc(50*time.Millisecond, func() { cancel(stop) })
	if _, err := l.Acquire(ctx, "a"); !errors.Is(err, reentrant.ErrBusy) || !errors.Is(err, stop) {
		t.Errorf("Acquire that was cancelled while it waited = %v, want busy and the cause", err)
	}
	if _, err := l.Acquire(t.Context(), "a", reentrant.WaitAtMost(30*time.Millisecond)); !errors.Is(err, reentrant.ErrBusy) {
		t.Errorf("Acquire that waited long enough = %v, want busy", err)
	}

	got := make(chan error, 1)
	go func() {
		lease, err := l.Acquire(t.Context(), "a")
		if err == nil {
			err = lease.Release(t.Context())
		}
		got <- err
	}()
	release(t, holder)
	if err := <-got; err != nil {
		t.Errorf("the one that waited: %v", err)
	}
}

// A context that carries one lock does not wait for another.
func TestAcquire_SecondNameIsTriedOnce(t *testing.T) {
	l, _ := newLocker(t, reentrant.Config{})
	a, b := acquire(t, l, t.Context(), "a"), acquire(t, l, t.Context(), "b")
	defer release(t, a)
	if _, err := l.Acquire(a.Context(), "b"); !errors.Is(err, reentrant.ErrBusy) {
		t.Errorf("a second name that is held = %v, want busy at once", err)
	}
	time.AfterFunc(20*time.Millisecond, func() { b.Release(context.WithoutCancel(t.Context())) })
	second, err := l.Acquire(a.Context(), "b", reentrant.WaitAtMost(10*time.Second))
	if err != nil {
		t.Fatalf("with a bound it waits: %v", err)
	}
	if got, ok := reentrant.FromContext(second.Context(), "a"); !ok || got != a {
		t.Error("the context of the second lock does not carry the first")
	}
	release(t, second)
}

func TestAcquire_ManyWorkersOneAtATime(t *testing.T) {
	l, _ := newLocker(t, reentrant.Config{})
	var inside atomic.Int64
	var last int64
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 5 {
				lease, err := l.Acquire(t.Context(), "a")
				if err != nil {
					t.Error(err)
					return
				}
				if n := inside.Add(1); n != 1 {
					t.Errorf("%d holders at once", n)
				}
				if lease.Fence() <= last {
					t.Errorf("fence %d after %d, must grow", lease.Fence(), last)
				}
				last = lease.Fence()
				inside.Add(-1)
				if err := lease.Release(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

func TestDo(t *testing.T) {
	l, rdb := newLocker(t, reentrant.Config{})
	boom := errors.New("boom")
	err := l.Do(t.Context(), "a", func(ctx context.Context) error {
		return l.Do(ctx, "a", func(ctx context.Context) error {
			if _, ok := reentrant.FromContext(ctx, "a"); !ok {
				t.Error("the context does not carry the lock")
			}
			return boom
		})
	})
	if !errors.Is(err, boom) {
		t.Errorf("Do = %v, want the error of the function", err)
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("Do swallowed a panic")
			}
		}()
		_ = l.Do(t.Context(), "a", func(context.Context) error { panic("boom") })
	}()
	if keys := lockKeys(t, rdb, prefixOf(t)); len(keys) != 0 {
		t.Errorf("left in Redis: %v", keys)
	}
}

func TestFence_PassesTheHint(t *testing.T) {
	l, rdb := newLocker(t, reentrant.Config{Shards: 1})
	first := acquire(t, l, t.Context(), "a")
	hint := first.Fence() + int64(time.Hour/time.Microsecond)
	hints := reentrant.FenceHints(map[string]int64{"a": hint})
	// Busy, but the counter keeps the hint for whoever comes next.
	if _, err := l.Acquire(t.Context(), "a", reentrant.WaitAtMost(0), hints); !errors.Is(err, reentrant.ErrBusy) {
		t.Fatalf("Acquire = %v, want busy", err)
	}
	release(t, first)
	second := acquire(t, l, t.Context(), "a")
	if second.Fence() != hint+1 {
		t.Errorf("fence = %d, want %d", second.Fence(), hint+1)
	}
	release(t, second)

	// The counter is lost with all of Redis: time keeps the fence growing.
	if err := rdb.Del(t.Context(), prefixOf(t)+":{0}:fence").Err(); err != nil {
		t.Fatal(err)
	}
	third := acquire(t, l, t.Context(), "a")
	if third.Fence() <= first.Fence() {
		t.Errorf("fence after the counter was lost = %d, want above %d", third.Fence(), first.Fence())
	}
	release(t, third)
	fourth := acquire(t, l, t.Context(), "a", reentrant.FenceHints(map[string]int64{"a": hint + 10}))
	if fourth.Fence() != hint+10 {
		t.Errorf("fence = %d, want the hint, %d", fourth.Fence(), hint+10)
	}
	release(t, fourth)
}

func TestAcquireEach(t *testing.T) {
	l, rdb := newLocker(t, reentrant.Config{})
	other := acquire(t, l, t.Context(), "c")
	outer := acquire(t, l, t.Context(), "d")
	names := []string{"a", "b", "c", "", "a", "d"}
	leases, errs := l.AcquireEach(outer.Context(), names)
	for i, want := range []error{nil, nil, reentrant.ErrBusy, reentrant.ErrName, reentrant.ErrBusy, nil} {
		if !errors.Is(errs[i], want) || (leases[i] == nil) != (want != nil) {
			t.Errorf("%q: lease %v, error %v, want %v", names[i], leases[i] != nil, errs[i], want)
		}
	}
	if leases[5].Fence() != outer.Fence() {
		t.Errorf("a name that the context carries was not re-entered")
	}
	ctx := reentrant.With(t.Context(), leases[0], leases[1])
	if got, ok := reentrant.FromContext(ctx, "b"); !ok || got != leases[1] {
		t.Error("With: the context does not carry the lease")
	}
	// Both handles of d in one call, the others among them.
	for i, err := range l.ReleaseEach(t.Context(), append(leases, outer)) {
		if err != nil {
			t.Errorf("release %d: %v", i, err)
		}
	}
	release(t, other)
	if keys := lockKeys(t, rdb, prefixOf(t)); len(keys) != 0 {
		t.Errorf("left in Redis: %v", keys)
	}
}

// With many leases, those of a batch, each is found as with few: the latest of a name
// first, then what was carried before.
func TestFromContext_Many(t *testing.T) {
	l, _ := newLocker(t, reentrant.Config{})
	before := acquire(t, l, t.Context(), "before")
	outer := acquire(t, l, before.Context(), "n7")
	names := make([]string, 64)
	for i := range names {
		names[i] = fmt.Sprintf("n%d", i)
	}
	leases, errs := l.AcquireEach(outer.Context(), names)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	last := acquire(t, l, outer.Context(), "n7")
	ctx := reentrant.With(reentrant.With(outer.Context(), append(leases, last)...), leases[5])
	for i, name := range names {
		want := leases[i]
		if name == "n7" {
			want = last
		}
		if got, ok := reentrant.FromContext(ctx, name); !ok || got != want {
			t.Errorf("%s: got %p, want %p", name, got, want)
		}
	}
	if got, ok := reentrant.FromContext(ctx, "before"); !ok || got != before {
		t.Error("a lease that was carried before is not found")
	}
	if _, ok := reentrant.FromContext(ctx, "other"); ok {
		t.Error("a lease that is not carried was found")
	}
	narrow := reentrant.Narrow(ctx, "n9", "before")
	for name, want := range map[string]bool{"n9": true, "before": true, "n8": false} {
		if _, ok := reentrant.FromContext(narrow, name); ok != want {
			t.Errorf("narrowed: %s is carried: %v, want %v", name, ok, want)
		}
	}
	for _, err := range l.ReleaseEach(t.Context(), append(leases, last, outer, before)) {
		if err != nil {
			t.Error(err)
		}
	}
}

func TestNarrow(t *testing.T) {
	l, _ := newLocker(t, reentrant.Config{})
	leases, errs := l.AcquireEach(t.Context(), []string{"a", "b", "c"})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if ctx := t.Context(); reentrant.Narrow(ctx, "a") != ctx {
		t.Error("a context without leases was changed")
	}
	ctx, cancel := context.WithCancel(reentrant.With(t.Context(), leases...))
	defer cancel()
	a, bc, none := reentrant.Narrow(ctx, "a"), reentrant.Narrow(ctx, "b", "c"), reentrant.Narrow(ctx, "x")
	for _, tt := range []struct {
		name string
		ctx  context.Context
		want string
	}{{"a", a, "a"}, {"b and c", bc, "bc"}, {"none", none, ""}} {
		got := ""
		for _, name := range []string{"a", "b", "c"} {
			if _, ok := reentrant.FromContext(tt.ctx, name); ok {
				got += name
			}
		}
		if got != tt.want {
			t.Errorf("narrowed to %s: carries %q, want %q", tt.name, got, tt.want)
		}
	}
	// A neighbour's lock is not re-entered.
	if _, err := l.Acquire(a, "b"); !errors.Is(err, reentrant.ErrBusy) {
		t.Errorf("Acquire of a neighbour's lock = %v, want busy", err)
	}
	release(t, leases[1])
	<-bc.Done()
	if got := context.Cause(bc); got != reentrant.ErrReleased {
		t.Errorf("cause = %v, want %v", got, reentrant.ErrReleased)
	}
	if a.Err() != nil {
		t.Error("a context ended with its neighbour's lease")
	}
	release(t, leases[0])
	release(t, leases[2])
	<-a.Done()
	if late := reentrant.Narrow(ctx, "a"); context.Cause(late) != reentrant.ErrReleased {
		t.Errorf("narrowed to a released lease: cause %v, want %v at once", context.Cause(late), reentrant.ErrReleased)
	}
}

func TestBadInput(t *testing.T) {
	l, rdb := newLocker(t, reentrant.Config{})
	for _, name := range []string{"", " \t", strings.Repeat("x", reentrant.MaxNameBytes+1)} {
		if _, err := l.Acquire(t.Context(), name); !errors.Is(err, reentrant.ErrName) {
			t.Errorf("Acquire(%.10q) = %v, want %v", name, err, reentrant.ErrName)
		}
	}
	if _, err := l.Acquire(t.Context(), "a", reentrant.FixedLease(time.Millisecond)); err == nil || !strings.Contains(err.Error(), "at least 250ms") {
		t.Errorf("FixedLease(1ms) = %v, want an error that says what is right", err)
	}
	for want, cfg := range map[string]reentrant.Config{
		"TTL is 1ms, must be at least 250ms":               {TTL: time.Millisecond},
		"TTL is 1.0000005s, must be whole milliseconds":    {TTL: time.Second + 500},
		`Prefix is "a{b", must not contain braces`:         {Prefix: "a{b"},
		"Shards is -1, must be between 1 and 16384":        {Shards: -1},
		"MaxHold is 1s, must be 0 (no limit) or at least":  {MaxHold: time.Second},
		"MaxHold is -1s, must be 0 (no limit) or at least": {MaxHold: -time.Second},
	} {
		if _, err := reentrant.New(rdb, cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New(%+v) = %v, want %q", cfg, err, want)
		}
	}
	_, err := reentrant.New(rdb, reentrant.Config{TTL: 1, Shards: -1})
	if err == nil || !strings.Contains(err.Error(), "TTL") || !strings.Contains(err.Error(), "Shards") {
		t.Errorf("New with two mistakes = %v, want both named", err)
	}
	if _, err := reentrant.New(nil, reentrant.Config{}); err == nil {
		t.Error("New(nil) accepted")
	}
}
