package main

import (
	"context"
	"maps"
	"slices"

	"github.com/onceward/onceward/bench/internal/compare"
)

// commands counts what the server is asked to do by one cycle that nobody waits for.
func commands(ctx context.Context, b *bench) error {
	p, err := newPeer(onceward, b.url)
	if err != nil {
		return err
	}
	defer p.close()
	ns := names(1, b.cycles)[0]
	// Once before: the connection, the scripts, and what all processes agree about.
	if err := p.lock(ctx, ns[0], func() {}); err != nil {
		return err
	}
	if err := b.admin.ConfigResetStat(ctx).Err(); err != nil {
		return err
	}
	for _, name := range ns {
		if err := p.lock(ctx, name, func() {}); err != nil {
			return err
		}
	}
	counts, err := b.commandCounts(ctx)
	if err != nil {
		return err
	}
	perCycle := func(command string) float64 { return float64(counts[command]) / float64(len(ns)) }
	for _, command := range slices.Sorted(maps.Keys(counts)) {
		if n := perCycle(command); n >= 0.5 {
			b.Note("%-10s %g a cycle", command, n)
		}
	}
	scripts := perCycle("evalsha") + perCycle("eval")
	b.AtMost("lock/commands/script-calls", compare.Exactly(scripts), 2)
	b.AtMost("lock/commands/publish", compare.Exactly(perCycle("publish")+perCycle("spublish")), 0)
	return nil
}
