package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/onceward/onceward/bench/internal/compare"
)

const (
	p50 = "p50 ms"
	p90 = "p90 ms"
	p99 = "p99 ms"
)

// handover measures how soon a process that waits has the lock after another has
// called release.
func handover(ctx context.Context, b *bench) error {
	var cases []compare.Case
	for _, name := range []string{onceward, rueidisL, redisLok, redSync} {
		children, stop, err := startChildren(ctx, 2, name, b.url)
		if err != nil {
			return err
		}
		defer stop()
		n := 0
		cases = append(cases, compare.Case{Name: name, Run: func(ctx context.Context) (compare.Sample, error) {
			var took compare.Values
			lost := 0
			for range b.trials {
				n++
				d, err := handOne(children[n%2], children[1-n%2], fmt.Sprintf("handover:%d", n))
				for errors.Is(err, errTooLate) { // the machine was busy: nothing was measured
					n++
					d, err = handOne(children[n%2], children[1-n%2], fmt.Sprintf("handover:%d", n))
				}
				if err != nil {
					return nil, err
				}
				if d == 0 {
					if name == onceward {
						return nil, errors.New("a caller that waited never got the lock")
					}
					lost++
					continue
				}
				took = append(took, float64(d.Microseconds())/1000)
			}
			return compare.Sample{p50: took.Median(), p90: took.Quantile(0.9), stuck: float64(lost)}, nil
		}})
	}
	res, err := compare.Rounds(ctx, b.few(), cases)
	if err != nil {
		return err
	}
	b.Table("handover", res, p50, p90, stuck)
	b.AtMost("lock/handover/p50-of-rueidislock", res.Ratio(p50, onceward, rueidisL), 0.75)
	b.AtLeast("lock/handover/p50-redsync-by-ours", res.Ratio(p50, redSync, onceward), 60)
	return nil
}

var errTooLate = errors.New("the lock was released before anybody waited for it")

// handOne lets one process hold a lock that the other waits for, and returns the time
// from the call of release to the return of acquire; 0 if the other did not get it.
func handOne(holder, waiter *child, name string) (time.Duration, error) {
	// Long enough for the waiter to come, and never in step with those who ask again
	// at fixed times.
	hold := 20*time.Millisecond + time.Duration(rand.Int64N(int64(60*time.Millisecond)))
	if err := holder.order(order{Name: name, Callers: 1, Hold: hold}); err != nil {
		return 0, err
	}
	if err := holder.held(); err != nil {
		return 0, err
	}
	if err := waiter.order(order{Name: name, Callers: 1}); err != nil {
		return 0, err
	}
	given, err := holder.turns()
	if err != nil {
		return 0, err
	}
	n, err := waiter.read()
	if err == nil && n.Held { // first says so, then what became of it
		n, err = waiter.read()
	}
	if err != nil {
		return 0, err
	}
	left, got := given[0].Left, n.Turns[0].Got
	switch {
	case got == 0:
		return 0, nil
	case n.Turns[0].Asked > left:
		return 0, errTooLate
	case got < left:
		return 0, fmt.Errorf("two processes held lock %s together", name)
	}
	return time.Duration(got - left), nil
}
