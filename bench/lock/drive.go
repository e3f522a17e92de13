package main

import (
	"context"
	"strconv"
	"time"

	"github.com/onceward/onceward/bench/internal/compare"
	"github.com/onceward/onceward/bench/internal/drive"
)

// Metrics of a rate.
const (
	perSecond = "cycles/s"  // acquire and release of one lock
	allocs    = "allocs"    // of the client, for each cycle
	clientCPU = "client us" // CPU time for each cycle
	redisCPU  = "redis us"
	stuck     = "stuck" // callers that did not come back
)

// drive lets callers repeat op for as long as window says. rueidislock now and then
// waits for ever on a lock that is free: such callers are counted as stuck.
func (b *bench) drive(ctx context.Context, callers int, window time.Duration, op drive.Op) (compare.Sample, error) {
	before, err := b.redisCPU(ctx)
	if err != nil {
		return nil, err
	}
	r, err := drive.Run(ctx, callers, window, op)
	if err != nil {
		return nil, err
	}
	after, err := b.redisCPU(ctx)
	if err != nil {
		return nil, err
	}
	return compare.Sample{
		perSecond: r.Rate,
		allocs:    r.Allocs,
		clientCPU: float64(r.CPU.Microseconds()) / float64(r.Did),
		redisCPU:  float64((after - before).Microseconds()) / float64(r.Did),
		stuck:     float64(r.Stuck),
	}, nil
}

// names returns lock names for each caller, that no other caller uses.
func names(callers, each int) [][]string {
	ns := make([][]string, callers)
	for c := range ns {
		ns[c] = make([]string, each)
		for i := range ns[c] {
			ns[c][i] = "order:" + strconv.Itoa(1000000+c*each+i)
		}
	}
	return ns
}
