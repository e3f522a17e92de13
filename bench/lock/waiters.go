package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/onceward/onceward/bench/internal/compare"
)

const (
	turnsPerSecond = "turns/s"
	overlaps       = "overlaps" // turns that began before the one before had ended
)

// waiters measures how long callers wait for a lock that all want at once.
func waiters(ctx context.Context, b *bench) error {
	const processes, callers, hold = 4, 4, time.Millisecond
	var cases []compare.Case
	for _, name := range []string{onceward, rueidisL, redisLok, redSync} {
		children, stop, err := startChildren(ctx, processes, name, b.url)
		if err != nil {
			return err
		}
		defer stop()
		n := 0
		cases = append(cases, compare.Case{Name: name, Run: func(ctx context.Context) (compare.Sample, error) {
			n++
			start := time.Now().Add(100 * time.Millisecond)
			o := order{Name: fmt.Sprintf("waiters:%d", n), Callers: callers, Hold: hold, Start: start, For: b.contend}
			for _, c := range children {
				if err := c.order(o); err != nil {
					return nil, err
				}
			}
			var turns []turn
			for _, c := range children {
				if err := c.held(); err != nil {
					return nil, err
				}
				ts, err := c.turns()
				if err != nil {
					return nil, err
				}
				turns = append(turns, ts...)
			}
			s := judge(turns, start.Add(b.contend), b.contend)
			if name == onceward && (s[stuck] > 0 || s[overlaps] > 0) {
				return nil, fmt.Errorf("our own locks: %v", s)
			}
			return s, nil
		}})
	}
	res, err := compare.Rounds(ctx, b.few(), cases)
	if err != nil {
		return err
	}
	b.Table("waiters", res, turnsPerSecond, p50, p99, stuck, overlaps)
	b.AtLeast("lock/waiters/p99-redsync-by-ours", res.Ratio(p99, redSync, onceward), 12)
	b.AtLeast("lock/waiters/turns-of-redsync", res.Ratio(turnsPerSecond, onceward, redSync), 0.95)
	return nil
}

// judge looks at the turns of all callers. Each of them goes on until it had its last
// turn, however late, so that a long wait counts though the time is over.
func judge(turns []turn, end time.Time, length time.Duration) compare.Sample {
	var waits compare.Values
	var held []turn
	inTime, stopped := 0, 0
	for _, t := range turns {
		waits = append(waits, float64(t.Released-t.Asked)/1e6)
		if t.Got == 0 {
			stopped++
			continue
		}
		held = append(held, t)
		if t.Released <= end.UnixNano() {
			inTime++
		}
	}
	slices.SortFunc(held, func(a, b turn) int { return cmp.Compare(a.Got, b.Got) })
	together := 0
	for i := 1; i < len(held); i++ {
		if held[i].Got < held[i-1].Left {
			together++
		}
	}
	return compare.Sample{
		turnsPerSecond: float64(inTime) / length.Seconds(),
		p50:            waits.Median(),
		p99:            waits.Quantile(0.99),
		stuck:          float64(stopped),
		overlaps:       float64(together),
	}
}
