// Package drive lets callers repeat something for a while, and counts.
package drive

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// StuckAfter is how much longer than it should a measurement waits for its callers.
const StuckAfter = 3 * time.Second

// An Op does something that is counted, once or several times, and returns how often.
// No two calls of one caller overlap.
type Op func(ctx context.Context, caller, turn int) (did int, err error)

// A Result is what callers did.
type Result struct {
	Did    int
	Rate   float64       // per second, summed over callers by the time of each
	Stuck  int           // callers that did not come back within StuckAfter
	Allocs float64       // of this process, for each that was counted
	CPU    time.Duration // of this process, for all
}

// Run lets callers repeat op for as long as window says. Each caller gets a context of
// its own.
func Run(ctx context.Context, callers int, window time.Duration, op Op) (Result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	giveUp := time.AfterFunc(window+StuckAfter, cancel)
	defer giveUp.Stop()

	var (
		over     atomic.Bool
		mu       sync.Mutex // guards what follows
		r        Result
		failures []error
	)
	contexts := make([]context.Context, callers)
	for i := range contexts { // each caller's own, as with a message each
		own, end := context.WithCancel(ctx)
		defer end()
		contexts[i] = own
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	usedBefore := UsedCPU()

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
			r.Did += n
			r.Rate += float64(n) / took.Seconds()
			switch {
			case err != nil && ctx.Err() != nil:
				r.Stuck++
			case err != nil:
				failures = append(failures, err)
			}
		})
	}
	wg.Wait()

	r.CPU = UsedCPU() - usedBefore
	runtime.ReadMemStats(&after)
	if len(failures) > 0 {
		return r, fmt.Errorf("%d callers failed: %w", len(failures), failures[0])
	}
	if r.Did == 0 {
		return r, errors.New("nothing was done within the time")
	}
	r.Allocs = float64(after.Mallocs-before.Mallocs) / float64(r.Did)
	return r, nil
}

// UsedCPU returns the CPU time that this process has used.
func UsedCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // it cannot fail with these arguments
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
