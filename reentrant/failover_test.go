package reentrant_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward/reentrant"
	"github.com/onceward/onceward/watchdog"
)

// stalls measures how long this machine lets a goroutine wait that wants to run. Who is
// paused for longer than a margin is told too late, whatever the library does.
type stalls struct {
	longest atomic.Int64
	stop    chan struct{}
	done    chan struct{}
}

func watchStalls() *stalls {
	s := &stalls{stop: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		const tick = 5 * time.Millisecond
		ticker := time.NewTicker(tick)
		defer ticker.Stop()
		for last := time.Now(); ; {
			select {
			case <-ticker.C:
				now := time.Now()
				s.longest.Store(max(s.longest.Load(), int64(now.Sub(last)-tick)))
				last = now
			case <-s.stop:
				return
			}
		}
	}()
	return s
}

// end stops measuring and returns the longest stall.
func (s *stalls) end() time.Duration {
	close(s.stop)
	<-s.done
	return time.Duration(s.longest.Load())
}

// A vigil notes when the context of a lease ends.
type vigil struct {
	*reentrant.Lease
	ended atomic.Pointer[time.Time]
}

func watch(lease *reentrant.Lease) *vigil {
	v := &vigil{Lease: lease}
	context.AfterFunc(lease.Context(), func() {
		now := time.Now()
		v.ended.Store(&now)
	})
	return v
}

// renewed returns when the renewal that the trust in the lease counts from was sent.
func (v *vigil) renewed(ttl time.Duration) time.Time {
	return time.Now().Add(v.Remaining() - (ttl - watchdog.Margin(ttl)))
}

const failoverTTL = 15 * time.Second

// survive holds locks, and waits for some, while a master dies and another one takes
// over. held has the names of locks, and whether their master is to die; free has names
// of free locks likewise.
//
// What must be true: a lease of another master is not lost. One of the dead master is renewed
// after the failover, or lost in time, with a cause. Locking works again. Who waits gets
// the lock.
func survive(t *testing.T, newLocker func() *reentrant.Locker, held, free map[string]bool, kill func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	holder, waiter := newLocker(), newLocker()
	vigils := map[string]*vigil{}
	for name := range held {
		vigils[name] = watch(acquire(t, holder, ctx, name))
	}
	type result struct {
		lease *reentrant.Lease
		err   error
	}
	waiting := map[string]chan result{}
	for _, dies := range []bool{true, false} {
		for name, its := range held {
			if its == dies && len(waiting) < 4 {
				got := make(chan result, 1)
				waiting[name] = got
				go func() {
					lease, err := waiter.Acquire(ctx, name)
					got <- result{lease, err}
				}()
			}
		}
	}
	for name := range waiting {
		until(t, "somebody waits for "+name, func() error {
			info, err := holder.Inspector().Inspect(ctx, name)
			if err == nil && len(info.Waiting) == 0 {
				err = errors.New("nobody waits")
			}
			return err
		})
	}

	quiet := watchStalls()
	killed := time.Now()
	kill()
	for name := range free {
		until(t, "locking works again for "+name, func() error {
			lease, err := holder.Acquire(ctx, name)
			if err == nil {
				err = lease.Release(ctx)
			}
			return err
		})
	}
	back := time.Now()
	t.Logf("locking worked again %v after the kill", back.Sub(killed))
	for name, v := range vigils {
		until(t, "the lease of "+name+" is renewed or lost", func() error {
			if v.ended.Load() == nil && v.renewed(failoverTTL).Before(back) {
				return fmt.Errorf("renewed %v after the master was killed, %v left", v.renewed(failoverTTL).Sub(killed), v.Remaining())
			}
			return nil
		})
	}
	stalled := quiet.end()

	lost := 0
	for name, v := range vigils {
		ended := v.ended.Load()
		if ended == nil {
			info, err := holder.Inspector().Inspect(ctx, name)
			if err != nil || info.Fence != v.Fence() || info.Owner != v.OwnerDigest() {
				t.Errorf("a lease of %s that is alive: Redis has %+v, %v", name, info, err)
			}
			if err := v.Release(ctx); err != nil {
				t.Errorf("Release of %s: %v", name, err)
			}
			continue
		}
		lost++
		if !held[name] && back.Sub(killed) < failoverTTL/2 {
			t.Errorf("the lease of %s was lost, though its master lives: %v", name, context.Cause(v.Context()))
		}
		var loss *reentrant.LostError
		if err := context.Cause(v.Context()); !errors.As(err, &loss) {
			t.Errorf("cause for %s = %v, want a LostError", name, err)
		}
		// Its last renewal was sent before the kill, or after the failover.
		if told := ended.Sub(killed); told >= failoverTTL && stalled < watchdog.Margin(failoverTTL) && ended.Before(back) {
			t.Errorf("told of the loss of %s after %v, its TTL is %v", name, told, failoverTTL)
		}
		if err := v.Release(ctx); !errors.Is(err, reentrant.ErrLost) {
			t.Errorf("Release of %s, which was lost = %v", name, err)
		}
	}
	t.Logf("%d of %d leases were lost; the longest stall was %v", lost, len(vigils), stalled)
	for name, got := range waiting {
		r := <-got
		if r.err != nil {
			t.Errorf("who waited for %s: %v", name, r.err)
			continue
		}
		if r.lease.Fence() <= vigils[name].Fence() {
			t.Errorf("fence of %s = %d after %d, must grow", name, r.lease.Fence(), vigils[name].Fence())
		}
		release(t, r.lease)
	}
	for info, err := range holder.Inspector().List(ctx, "") {
		if err != nil {
			t.Fatal(err)
		}
		// Only what was left by a request that got no answer.
		if info.Left <= 0 || info.Left > failoverTTL {
			t.Errorf("left in Redis: %+v", info)
		}
	}
}

// until asks again until there is no error, or for too long: servers do not say when
// they have agreed.
func until(t *testing.T, what string, ask func() error) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		err := ask()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited a minute until %s: %v", what, err)
		}
	}
}
