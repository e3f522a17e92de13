package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"time"

	"github.com/onceward/onceward/bench/internal/compare"
	"github.com/onceward/onceward/bench/internal/drive"
	"github.com/onceward/onceward/reentrant"
	"github.com/redis/go-redis/v9"
)

// leases holds many locks at once and looks at what it takes to keep them alive.
func leases(ctx context.Context, b *bench) error {
	rdb := redis.NewClient(clientOptions(b.url))
	defer rdb.Close()
	cfg := reentrant.Config{TTL: b.leaseTTL, Logger: slog.New(slog.DiscardHandler)}
	store, err := reentrant.NewRedisStore(rdb, cfg)
	if err != nil {
		return err
	}
	w := watch(store, b.leases)
	// The connections of the client are there, and all that is ours alone.
	if err := errors.Join(storeWorks(ctx, store), rdb.Ping(ctx).Err()); err != nil {
		return err
	}
	goroutines, memory := runtime.NumGoroutine(), inUse()

	l, err := reentrant.NewLocker(w, cfg)
	if err != nil {
		return err
	}
	defer l.Close()
	held, err := holdMany(ctx, l, w, b.leases)
	if err != nil {
		return err
	}
	perLease := float64(inUse()-memory) / float64(b.leases)

	// Two renewals of each, and some time for those that are late.
	length := b.leaseTTL*2/3 + b.leaseTTL/30
	before, started := drive.UsedCPU(), time.Now()
	redisBefore, err := b.redisCPU(ctx)
	if err != nil {
		return err
	}
	most, err := mostGoroutines(ctx, length)
	if err != nil {
		return err
	}
	used, took := drive.UsedCPU()-before, time.Since(started)
	redisAfter, err := b.redisCPU(ctx)
	if err != nil {
		return err
	}
	lost := 0
	for _, lease := range held {
		if lease.Context().Err() != nil {
			lost++
		}
	}
	renewed := w.renewed.Load()
	b.Note("%d leases, TTL %v: %d renewals in %v, %.0f a second", b.leases, b.leaseTTL, renewed, took.Round(time.Millisecond), float64(renewed)/took.Seconds())
	b.Note("a renewal took %.1f us of CPU time here and %.1f us in Redis; all of it %.1f %% and %.1f %% of a core",
		float64(used.Microseconds())/float64(renewed), float64((redisAfter-redisBefore).Microseconds())/float64(renewed),
		100*used.Seconds()/took.Seconds(), 100*(redisAfter-redisBefore).Seconds()/took.Seconds())
	if err := releaseMany(ctx, l, held); err != nil {
		return err
	}
	if renewed < int64(b.leases) {
		return fmt.Errorf("%d renewals of %d leases", renewed, b.leases)
	}
	b.AtMost("lock/leases/failed-renewals", compare.Exactly(float64(w.failed.Load())), 0)
	b.AtMost("lock/leases/lost", compare.Exactly(float64(lost)), 0)
	b.AtMost("lock/leases/lateness-ms", compare.Exactly(w.latest(func(int) bool { return true })), 100)
	b.AtMost("lock/leases/goroutines", compare.Exactly(float64(most-goroutines)), 16)
	b.AtMost("lock/leases/bytes-per-lease", compare.Exactly(perLease), 600)
	return nil
}

// storeWorks makes a store use what it needs.
func storeWorks(ctx context.Context, s *reentrant.RedisStore) error {
	const name, owner = "warm", "warm.1"
	r := s.Acquire(ctx, []reentrant.AcquireRequest{{Name: name, Owner: owner, Depth: 1, TTL: time.Second}})[0]
	return errors.Join(r.Err, s.Release(ctx, []reentrant.ReleaseRequest{{Name: name, Owner: owner, TTL: time.Second}})[0].Err)
}

// holdMany takes the locks 0..n-1 of w.
func holdMany(ctx context.Context, l *reentrant.Locker, w *watched, n int) ([]*reentrant.Lease, error) {
	const chunk = 128
	held := make([]*reentrant.Lease, 0, n)
	names := make([]string, 0, chunk)
	for len(held) < n {
		names = names[:0]
		for i := len(held); i < min(n, len(held)+chunk); i++ {
			names = append(names, w.name(i))
		}
		leases, errs := l.AcquireEach(ctx, names)
		if err := errors.Join(errs...); err != nil {
			return nil, err
		}
		held = append(held, leases...)
	}
	return held, nil
}

func releaseMany(ctx context.Context, l *reentrant.Locker, held []*reentrant.Lease) error {
	for len(held) > 0 {
		n := min(len(held), 128)
		if err := errors.Join(l.ReleaseEach(ctx, held[:n])...); err != nil {
			return err
		}
		held = held[n:]
	}
	return nil
}

// inUse returns the bytes of what is alive, with the stacks.
func inUse() int64 {
	runtime.GC()
	runtime.GC() // what the first found in pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// mostGoroutines returns the highest number of goroutines within a time, not
// counting its own caller twice.
func mostGoroutines(ctx context.Context, length time.Duration) (most int, err error) {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	over := time.After(length)
	for {
		select {
		case <-tick.C:
			most = max(most, runtime.NumGoroutine())
		case <-over:
			return most, nil
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}
