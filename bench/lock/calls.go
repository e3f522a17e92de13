package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/onceward/onceward/bench/internal/compare"
)

// calls compares single calls: acquire, release, acquire the next.
func calls(ctx context.Context, b *bench) error {
	const most, each = 64, 256
	all := []string{onceward, raw, redSync, redisLok, rueidisL}
	peers, closeAll, err := openPeers(b.url, all)
	if err != nil {
		return err
	}
	defer closeAll()
	ns := names(most, each)

	var cases []compare.Case
	add := func(callers int, peers ...*peer) {
		for _, p := range peers {
			cases = append(cases, compare.Case{Name: caseName(p.name, callers), Run: func(ctx context.Context) (compare.Sample, error) {
				return b.drive(ctx, callers, b.window, func(ctx context.Context, caller, turn int) (int, error) {
					return 1, p.lock(ctx, ns[caller][turn%each], func() {})
				})
			}})
		}
	}
	add(1, peers...)
	add(16, peers...)
	add(most, peers...)

	// What becomes of a single caller whose context cannot be cancelled, for whom the
	// round trip needs no goroutine of its own; and what the scripts cost by themselves.
	ours := peers[slices.Index(all, onceward)]
	cases = append(cases, compare.Case{Name: uncancelled, Run: func(ctx context.Context) (compare.Sample, error) {
		return b.drive(ctx, 1, b.window, func(_ context.Context, _, turn int) (int, error) {
			return 1, ours.lock(context.Background(), ns[0][turn%each], func() {})
		})
	}})
	const few = 16 // names a caller
	bare, err := newBare(ctx, b.url, slices.Concat(names(most, few)...))
	if err != nil {
		return err
	}
	defer bare.rdb.Close()
	cases = append(cases, compare.Case{Name: scriptsAlone, Run: func(ctx context.Context) (compare.Sample, error) {
		return b.drive(ctx, 1, b.window, func(ctx context.Context, _, turn int) (int, error) {
			return 1, bare.cycle(ctx, turn)
		})
	}})
	// The same scripts where go-redis lets callers share pipelines, in place of ours.
	auto, err := bare.rdb.AutoPipeline()
	if err != nil {
		return fmt.Errorf("AutoPipeline: %w", err)
	}
	defer auto.Close()
	for _, callers := range []int{1, 16, most} {
		cases = append(cases, compare.Case{Name: caseName(autoPipeline, callers), Run: func(ctx context.Context) (compare.Sample, error) {
			return b.drive(ctx, callers, b.window, func(ctx context.Context, caller, turn int) (int, error) {
				return 1, bare.cycleOn(ctx, auto, caller*few+turn%few)
			})
		}})
	}
	res, err := compare.Rounds(ctx, b.rounds, cases)
	if err != nil {
		return err
	}
	for _, vs := range []int{1, 16, most} {
		for _, v := range res.Of(stuck, caseName(onceward, vs)) {
			if v > 0 {
				return fmt.Errorf("%.0f of our own callers did not come back", v)
			}
		}
	}
	b.Table("calls", res, perSecond, allocs, clientCPU, redisCPU, stuck)
	against := func(callers int, other string) compare.Values {
		return res.Ratio(perSecond, caseName(onceward, callers), caseName(other, callers))
	}
	b.AtLeast("lock/calls/1-caller/of-raw", against(1, raw), 0.8)
	b.AtLeast("lock/calls/16-callers/of-redsync", against(16, redSync), 1.25)
	b.AtLeast("lock/calls/64-callers/of-redsync", against(most, redSync), 2.5)
	b.Note("a single caller, of raw: %.2f; with context.Background %.2f; its scripts alone %.2f",
		against(1, raw).Median(),
		res.Ratio(perSecond, uncancelled, caseName(raw, 1)).Median(),
		res.Ratio(perSecond, scriptsAlone, caseName(raw, 1)).Median())
	b.Note("of go-redis's AutoPipeline, which has no leases to keep: 1 caller %.2f, 16 callers %.2f, %d callers %.2f",
		against(1, autoPipeline).Median(), against(16, autoPipeline).Median(), most, against(most, autoPipeline).Median())
	b.AtMost("lock/calls/allocs", res.Of(allocs, caseName(onceward, 1)), 32)
	return nil
}

const (
	uncancelled  = "onceward, 1 caller with context.Background"
	scriptsAlone = "the scripts of onceward, 1 caller"
	autoPipeline = "its scripts by AutoPipeline"
)

func caseName(peer string, callers int) string {
	if callers == 1 {
		return peer + ", 1 caller"
	}
	return fmt.Sprintf("%s, %d callers", peer, callers)
}

func openPeers(url string, names []string) (peers []*peer, closeAll func(), err error) {
	closeAll = func() {
		for _, p := range peers {
			_ = p.close() // all was measured already
		}
	}
	for _, name := range names {
		p, err := newPeer(name, url)
		if err != nil {
			closeAll()
			return nil, nil, fmt.Errorf("%s: %w", name, err)
		}
		peers = append(peers, p)
	}
	return peers, closeAll, nil
}
