package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/onceward/onceward/bench/internal/compare"
)

// Metrics of a rate.
const (
	perSecond = "cycles/s"  // acquire and release of one lock
	allocs    = "allocs"    // of the client, for each cycle
	clientCPU = "client us" // CPU time for each cycle
	redisCPU  = "redis us"
	stuck     = "stuck" // callers that did not come back within stuckAfter
)

// stuckAfter is how much longer than it should a measurement waits for its callers.
// rueidislock now and then waits for ever on a lock that is free.
const stuckAfter = 3 * time.Second

// An op makes locks of its own go round once, and returns how many these were.
type op func(ctx context.Context, caller, turn int) (cycles int, err error)

// drive lets callers repeat op for as long as window says.
func (b *bench) drive(ctx context.Context, callers int, window time.Duration, op op) (compare.Sample, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	giveUp := time.AfterFunc(window+stuckAfter, cancel)
	defer giveUp.Stop()

	var (
		over     atomic.Bool
		mu       sync.Mutex // guards what follows
		cycles   int
		rate     float64
		nStuck   int
		failures []error
	)
	contexts := make([]context.Context, callers)
	for i := range contexts { // each caller's own, as with a message each
		own, end := context.WithCancel(ctx)
		defer end()
		contexts[i] = own
	}
	redisBefore, err := b.redisCPU(ctx)
	if err != nil {
		return nil, err
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	usedBefore := usedCPU()

	start := time.Now()
	time.AfterFunc(window, func() { over.Store(true) })
	var wg sync.WaitGroup
	for caller := range callers {
		wg.Go(func() {
			n := 0
			var err error
			for turn := 0; err == nil && !over.Load(); turn++ {
				var did int
				did, err = op(contexts[caller], caller, turn)
				n += did
			}
			took := time.Since(start)
			mu.Lock()
			defer mu.Unlock()
			cycles += n
			rate += float64(n) / took.Seconds()
			switch {
			case err != nil && ctx.Err() != nil:
				nStuck++
			case err != nil:
				failures = append(failures, err)
			}
		})
	}
	wg.Wait()

	used := usedCPU() - usedBefore
	runtime.ReadMemStats(&after)
	if len(failures) > 0 {
		return nil, fmt.Errorf("%d callers failed: %w", len(failures), failures[0])
	}
	if cycles == 0 {
		return nil, errors.New("not one cycle within the time")
	}
	redisAfter, err := b.redisCPU(context.WithoutCancel(ctx))
	if err != nil {
		return nil, err
	}
	return compare.Sample{
		perSecond: rate,
		allocs:    float64(after.Mallocs-before.Mallocs) / float64(cycles),
		clientCPU: float64(used.Microseconds()) / float64(cycles),
		redisCPU:  float64((redisAfter - redisBefore).Microseconds()) / float64(cycles),
		stuck:     float64(nStuck),
	}, nil
}

// usedCPU returns the CPU time that this process has used.
func usedCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // it cannot fail with these arguments
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
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
