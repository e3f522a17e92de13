package middleware_test

import (
	"context"
	"errors"
	"testing"

	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/middleware"
	"github.com/onceward/onceward/reentrant"
	"github.com/twmb/franz-go/pkg/kgo"
)

// free fails the test if one of the locks is still held.
func free(t *testing.T, l *reentrant.Locker, names ...string) {
	t.Helper()
	leases, errs := l.AcquireEach(t.Context(), names)
	if err := errors.Join(errs...); err != nil {
		t.Errorf("after the batch: %v", err)
	}
	l.ReleaseEach(t.Context(), leases)
}

func TestLock_HoldsWhileTheHandlerWorks(t *testing.T) {
	l, _ := newLocker(t)
	h := middleware.Chain(middleware.RecordFunc(func(ctx context.Context, r *kgo.Record) error {
		lease, ok := reentrant.FromContext(ctx, string(r.Value))
		if !ok || lease.Remaining() == 0 {
			t.Errorf("%s: not held", r.Value)
		}
		for _, other := range []string{"a", "b"} {
			if _, ok := reentrant.FromContext(ctx, other); ok != (other == string(r.Value)) {
				t.Errorf("%s: carries %s: %v", r.Value, other, ok)
			}
		}
		if _, err := l.Acquire(context.WithoutCancel(t.Context()), string(r.Value), reentrant.WaitAtMost(0)); !errors.Is(err, reentrant.ErrBusy) {
			t.Errorf("%s: another acquire = %v, want busy", r.Value, err)
		}
		return nil
	}), middleware.Lock(l))
	for _, err := range handle(t, h, messages(t, "a", "b")) {
		if err != nil {
			t.Error(err)
		}
	}
	free(t, l, "a", "b")
}

func TestLock_BusyOneStaysBehind(t *testing.T) {
	l, _ := newLocker(t)
	other, err := l.Acquire(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	boom := errors.New("boom")
	var handled []string
	h := middleware.Chain(middleware.HandlerFunc(func(_ context.Context, ms []*middleware.Message) []error {
		errs := make([]error, len(ms))
		for i, m := range ms {
			handled = append(handled, m.Key)
			if m.Key == "c" {
				errs[i] = boom
			}
		}
		return errs
	}), middleware.Lock(l))
	errs := handle(t, h, messages(t, "a", "b", "c"))
	if errs[0] != nil || !errors.Is(errs[1], reentrant.ErrBusy) || errs[2] != boom {
		t.Errorf("errors = %v, want nil, busy, boom", errs)
	}
	if len(handled) != 2 || handled[0] != "a" || handled[1] != "c" {
		t.Errorf("handled %v, want a and c", handled)
	}
	if err := other.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if errs := handle(t, h, messages(t, "b")); errs[0] != nil {
		t.Errorf("once it is free: %v", errs[0])
	}
	free(t, l, "a", "b", "c")
}

// All of a message's names, or none.
func TestLock_FurtherNames(t *testing.T) {
	l, _ := newLocker(t)
	other, err := l.Acquire(t.Context(), "stock:2")
	if err != nil {
		t.Fatal(err)
	}
	h := middleware.Chain(middleware.RecordFunc(func(ctx context.Context, r *kgo.Record) error {
		for _, name := range []string{"a", "stock:1"} {
			if _, ok := reentrant.FromContext(ctx, name); !ok {
				t.Errorf("%s is not held", name)
			}
		}
		return nil
	}), middleware.Lock(l))
	ms := messages(t, "a", "b")
	ms[0].Also, ms[1].Also = []string{"stock:1"}, []string{"stock:2", "stock:3"}
	errs := handle(t, h, ms)
	if errs[0] != nil || !errors.Is(errs[1], reentrant.ErrBusy) {
		t.Errorf("errors = %v, want nil and busy", errs)
	}
	free(t, l, "a", "b", "stock:1", "stock:3")
	if err := other.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestLock_GivenBackAfterPanic(t *testing.T) {
	l, _ := newLocker(t)
	h := middleware.Chain(middleware.HandlerFunc(func(context.Context, []*middleware.Message) []error { panic("boom") }), middleware.Recover(), middleware.Lock(l))
	for _, err := range handle(t, h, messages(t, "a", "b")) {
		if err == nil {
			t.Error("the panic got lost")
		}
	}
	free(t, l, "a", "b")
}

// A fence that the inbox refused is overtaken at the next try.
func TestLock_AsksForAHigherFence(t *testing.T) {
	l, _ := newLocker(t)
	var fences []int64
	const ahead = 1_000_000_000_000
	h := middleware.Chain(middleware.HandlerFunc(func(ctx context.Context, ms []*middleware.Message) []error {
		lease, _ := reentrant.FromContext(ctx, "a")
		fences = append(fences, lease.Fence())
		if len(fences) == 1 {
			return []error{&inbox.StaleError{Resource: lease.Resource(), Token: lease.Fence(), Stored: lease.Fence() + ahead}}
		}
		return nil
	}), middleware.Lock(l))
	ms := messages(t, "a")
	if got := middleware.Classify(handle(t, h, ms)[0]); got != middleware.Uncharged {
		t.Errorf("class of a stale fence = %v, want %v", got, middleware.Uncharged)
	}
	if errs := handle(t, h, ms); errs[0] != nil {
		t.Fatal(errs[0])
	}
	if want := fences[0] + ahead + 1; fences[1] != want {
		t.Errorf("second fence = %d, want %d", fences[1], want)
	}
}

func TestLock_RedisAway(t *testing.T) {
	l, rdb := newLocker(t)
	rdb.Close()
	h := middleware.Chain(middleware.RecordFunc(func(context.Context, *kgo.Record) error {
		t.Error("handled without a lock")
		return nil
	}), middleware.Lock(l))
	for _, err := range handle(t, h, messages(t, "a", "b")) {
		if err == nil {
			t.Error("decided without a lock")
		}
	}
}
