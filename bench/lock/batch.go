package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/onceward/onceward/bench/internal/compare"
	"github.com/onceward/onceward/reentrant"
	"github.com/redis/go-redis/v9"
)

// batch compares locks that are taken and given back 64 at a time with single calls
// of redsync, and with a client that costs nothing.
func batch(ctx context.Context, b *bench) error {
	const callers, many, each = 4, 64, 16
	ns := names(callers*each, many)
	redsync, err := newPeer(redSync, b.url)
	if err != nil {
		return err
	}
	defer redsync.close()
	single := names(16, 256)
	cases := []compare.Case{{Name: caseName(redSync, 16), Run: func(ctx context.Context) (compare.Sample, error) {
		return b.drive(ctx, 16, b.window, func(ctx context.Context, caller, turn int) (int, error) {
			return 1, redsync.lock(ctx, single[caller][turn%256], func() {})
		})
	}}}

	for _, way := range []struct {
		name string
		cfg  reentrant.Config
	}{
		{"scripts", reentrant.Config{Prefix: "scripts"}},
		{"pipelines", reentrant.Config{Prefix: "pipelines", SingleKeyScripts: true}},
	} {
		l, closeLocker, err := b.openLocker(way.cfg)
		if err != nil {
			return err
		}
		defer closeLocker()
		cases = append(cases, compare.Case{Name: way.name, Run: func(ctx context.Context) (compare.Sample, error) {
			return b.drive(ctx, callers, b.window, func(ctx context.Context, caller, turn int) (int, error) {
				return many, cycleEach(ctx, l, ns[caller*each+turn%each])
			})
		}})
		way.cfg.Prefix += "-recorded"
		floor, err := newFloor(ctx, b.url, way.cfg, names(callers, many))
		if err != nil {
			return fmt.Errorf("hand-encoded %s: %w", way.name, err)
		}
		defer floor.close()
		cases = append(cases, compare.Case{Name: way.name + ", hand-encoded", Run: func(ctx context.Context) (compare.Sample, error) {
			return b.drive(ctx, callers, b.window, func(_ context.Context, caller, _ int) (int, error) {
				return many, floor.cycle(caller)
			})
		}})
	}
	res, err := compare.Rounds(ctx, b.rounds, cases)
	if err != nil {
		return err
	}
	b.Table("batch", res, perSecond, allocs, clientCPU, redisCPU)
	redsync16 := caseName(redSync, 16)
	b.AtLeast("lock/batch/scripts/of-redsync", res.Ratio(perSecond, "scripts", redsync16), 10)
	b.AtLeast("lock/batch/pipelines/of-redsync", res.Ratio(perSecond, "pipelines", redsync16), 5)
	b.AtMost("lock/batch/pipelines/redis-cpu-of-hand-encoded", res.Ratio(redisCPU, "pipelines", "pipelines, hand-encoded"), 1.15)
	b.AtMost("lock/batch/scripts/redis-cpu-of-hand-encoded", res.Ratio(redisCPU, "scripts", "scripts, hand-encoded"), 1.15)
	b.AtMost("lock/batch/pipelines/allocs", res.Of(allocs, "pipelines"), 25)
	b.AtMost("lock/batch/scripts/allocs", res.Of(allocs, "scripts"), 8)
	return nil
}

// cycleEach takes all locks and gives them back.
func cycleEach(ctx context.Context, l *reentrant.Locker, names []string) error {
	leases, errs := l.AcquireEach(ctx, names)
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return errors.Join(l.ReleaseEach(ctx, leases)...)
}

// openLocker makes a locker with a client of its own.
func (b *bench) openLocker(cfg reentrant.Config) (*reentrant.Locker, func(), error) {
	rdb := redis.NewClient(clientOptions(b.url))
	l, err := newLocker(rdb, cfg)
	if err != nil {
		return nil, nil, errors.Join(err, rdb.Close())
	}
	return l, func() { _ = errors.Join(l.Close(), rdb.Close()) }, nil
}
