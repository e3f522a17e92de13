package reentrant_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/devstack/devtest"
	"github.com/onceward/onceward/reentrant"
)

// cutOff is a store of a process that can be cut off: its questions get no answer, and
// its news waits.
type cutOff struct {
	*reentrant.RedisStore
	cut    atomic.Bool
	seated chan reentrant.AcquireReply // answers to questions with a seat
	news   chan reentrant.Handover
	woken  chan func(reentrant.Handover)
}

func (s *cutOff) Acquire(ctx context.Context, reqs []reentrant.AcquireRequest) []reentrant.AcquireReply {
	if reqs[0].Seat == 0 {
		return s.RedisStore.Acquire(ctx, reqs)
	}
	if s.cut.Load() {
		return []reentrant.AcquireReply{{Err: errors.New("cut off")}}
	}
	r := s.RedisStore.Acquire(ctx, reqs)
	s.seated <- r[0]
	return r
}

func (s *cutOff) Listen(ctx context.Context, client string, woken func(reentrant.Handover)) (func(), error) {
	s.woken <- woken
	return s.RedisStore.Listen(ctx, client, func(h reentrant.Handover) { s.news <- h })
}

// A process that waits is cut off (or paused) for longer than it may keep a lock that
// was handed to it, and another one takes the lock. Once it is back it asks, is told
// busy, and then the old news arrives. It must not take itself for the holder.
func TestWait_NewsOfAGrantThatHasEnded(t *testing.T) {
	rdb := devtest.Redis(t)
	cfg := reentrant.Config{Prefix: prefixOf(t), Logger: slog.New(slog.DiscardHandler)}
	rs, err := reentrant.NewRedisStore(rdb, cfg)
	if err != nil {
		t.Fatal(err)
	}
	s := &cutOff{RedisStore: rs, seated: make(chan reentrant.AcquireReply, 100), news: make(chan reentrant.Handover, 1), woken: make(chan func(reentrant.Handover), 1)}
	waiter, err := reentrant.NewLocker(s, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { waiter.Close() })
	other := lockerOn(t, rdb, cfg)
	first := acquire(t, other, t.Context(), "a")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	got := make(chan *reentrant.Lease, 1)
	go func() {
		lease, err := waiter.Acquire(ctx, "a")
		if err != nil && ctx.Err() == nil {
			t.Error(err)
		}
		got <- lease
	}()
	woken := <-s.woken
	<-s.seated
	s.cut.Store(true)
	release(t, first)
	old := <-s.news
	x := acquire(t, other, t.Context(), "a") // once the time of the one cut off is over
	for len(s.seated) > 0 {
		<-s.seated
	}
	s.cut.Store(false)
	if r := <-s.seated; r.Answer != reentrant.Busy {
		t.Fatalf("the one that is back: %+v, want busy", r)
	}
	woken(old)
	select {
	case lease := <-got:
		if lease != nil && lease.Remaining() > 0 && x.Remaining() > 0 {
			t.Errorf("two holders: fence %d with %v left, and fence %d with %v left", lease.Fence(), lease.Remaining(), x.Fence(), x.Remaining())
		}
	case r := <-s.seated: // it asked again, rightly
		if r.Answer != reentrant.Busy {
			t.Errorf("asked again: %+v, want busy", r)
		}
		cancel()
		<-got
	}
	release(t, x)
}

// A fixed lease is as long when it was waited for.
func TestFixedLease_HandedOver(t *testing.T) {
	l, _ := newLocker(t, reentrant.Config{})
	first := acquire(t, l, t.Context(), "a")
	got := make(chan *reentrant.Lease, 1)
	go func() {
		lease, err := l.Acquire(t.Context(), "a", reentrant.FixedLease(20*time.Second))
		if err != nil {
			t.Error(err)
		}
		got <- lease
	}()
	for {
		info, err := l.Inspector().Inspect(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if len(info.Waiting) > 0 {
			break
		}
	}
	release(t, first)
	lease := <-got
	if left := lease.Remaining(); left < 10*time.Second {
		t.Errorf("a fixed lease of 20s lasts for %v", left)
	}
	release(t, lease)
}
