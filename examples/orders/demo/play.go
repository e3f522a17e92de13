package demo

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// play runs one world from its orders to its audit.
func (w *world) play(ctx context.Context) (*findings, error) {
	ctx, w.cancel = context.WithCancelCause(ctx)
	defer w.cancel(nil)
	w.plan = newPlan(w.opts.Orders)
	if err := w.open(ctx); err != nil {
		return nil, err
	}
	f := &findings{Guard: w.guard}
	begin := time.Now()
	stop := w.screen.live(w.status)
	defer stop()
	for _, phase := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"start", w.startAll},
		{"pause", w.pause},
		{"late", w.late},
		{"kill", w.kill},
		{"finish", w.finish},
		{"audit", func(ctx context.Context) (err error) {
			f.Took = time.Since(begin)
			return w.audit(ctx, f)
		}},
	} {
		since := time.Now()
		if err := phase.run(ctx); err != nil {
			if cause := context.Cause(ctx); cause != nil { // an instance that died is why, not the wait that it ended
				err = cause
			}
			return nil, fmt.Errorf("%s: %w", phase.name, err)
		}
		w.screen.took(time.Since(since))
	}
	return f, nil
}

// startAll places the first orders and starts three instances.
func (w *world) startAll(ctx context.Context) error {
	if _, err := w.db.ExecContext(ctx, `INSERT INTO periods (id) VALUES ($1), ($2)`, period, periodLate); err != nil {
		return err
	}
	if err := w.place(ctx, false, w.plan.wave1...); err != nil {
		return err
	}
	names := []string{"A", "B", "C"}
	for _, name := range names {
		if err := w.start(name); err != nil {
			return err
		}
	}
	w.screen.head("start: %d orders are overdue, instances A, B and C (pids %d, %d and %d)",
		len(w.plan.wave1), w.instances["A"].pid, w.instances["B"].pid, w.instances["C"].pid)
	owners, err := w.settled(ctx)
	if err != nil {
		return err
	}
	w.screen.say("topics %s and %s: %d partitions to A, %d to B, %d to C", w.cfg.Topic, w.cfg.RetryTopic, len(owners["A"]), len(owners["B"]), len(owners["C"]))
	return w.journal.await(ctx, "the first outcomes of events that the scan job told", func() bool {
		return w.journal.counts.deliveries >= len(w.plan.wave1)/20
	})
}

// cast picks the instance of a scene (only, if that is not empty), a partition that it has,
// and one that another instance has, of the other topic: so the copies of an event meet.
func (w *world) cast(ctx context.Context, only string) (victim *instance, mine, theirs topicPartition, err error) {
	owners, err := w.settled(ctx)
	if err != nil {
		return nil, mine, theirs, err
	}
	name := cmp.Or(only, slices.Min(slices.Collect(maps.Keys(owners))))
	victim, parts := w.instances[name], owners[name]
	if victim == nil || len(parts) == 0 {
		return nil, mine, theirs, fmt.Errorf("no part for instance %s: the group has given the partitions as %v", name, owners)
	}
	mine = parts[0]
	for other, parts := range owners {
		for _, p := range parts {
			if other != name && p.topic != mine.topic {
				return victim, mine, p, nil
			}
		}
	}
	return nil, mine, theirs, fmt.Errorf("no rival for instance %s: the group has given the partitions as %v", name, owners)
}

// reached waits until somebody is about to handle a delivery.
func (w *world) reached(ctx context.Context, at position, what string) (t tenure, err error) {
	err = w.journal.await(ctx, fmt.Sprintf("somebody to be about to handle %s at %v", what, at), func() bool {
		var ok bool
		t, ok = w.journal.holder(at)
		return ok
	})
	return t, err
}

// decided waits until a delivery is decided.
func (w *world) decided(ctx context.Context, at position, what string) (o told, err error) {
	err = w.journal.await(ctx, fmt.Sprintf("%s at %v to be decided", what, at), func() bool {
		var ok bool
		o, ok = w.journal.decided(at)
		return ok
	})
	return o, err
}

// announced waits until the scan job has nothing to do.
func (w *world) announced(ctx context.Context) error {
	return poll(ctx, "all orders to be announced", func(ctx context.Context) (bool, error) {
		var left int
		err := w.db.GetContext(ctx, &left, `SELECT count(*) FROM orders WHERE announced_at IS NULL`)
		return left == 0, err
	})
}

// quiet waits until there is nothing to do: all is announced, decided and committed.
func (w *world) quiet(ctx context.Context) error {
	if err := w.announced(ctx); err != nil {
		return err
	}
	return poll(ctx, "all offsets to be committed", func(ctx context.Context) (bool, error) {
		lag, err := w.lag(ctx)
		return lag == 0, err
	})
}

// lost notes what was done to the holder of a lock.
func (w *world) lost(g grant, why string) {
	w.journal.change(func() { w.journal.lost(g, why) })
}

// finish waits until all is decided and committed, and stops the instances.
func (w *world) finish(ctx context.Context) error {
	w.screen.head("finish: everything that was told is decided and committed, then the instances stop")
	if err := w.quiet(ctx); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(w.instances)) {
		if err := w.instances[name].stop(ctx); err != nil {
			return err
		}
	}
	return nil
}

// status is the line that shows life.
func (w *world) status() string {
	var c counts
	w.journal.read(func() { c = w.journal.counts })
	line := fmt.Sprintf("%d deliveries: %d applied", c.deliveries, c.applied)
	for _, n := range []struct {
		name string
		n    int
	}{{"duplicates", c.duplicates}, {"skipped", c.skipped}, {"busy", c.busy}, {"stale", c.stale}} {
		if n.n > 0 {
			line += fmt.Sprintf(", %d %s", n.n, n.name)
		}
	}
	return line
}

// takes says how an instance came by an order that another one had in hand.
func (t tenure) takes() string {
	if t.Lock == "" {
		return "has its hands on"
	}
	return "took over"
}

// who names a holder: with its grant, if there are locks.
func (t tenure) who() string {
	if t.Lock == "" {
		return t.by
	}
	return fmt.Sprintf("%s (owner %s, fence %d)", t.by, t.Owner, t.Fence)
}

// story tells what became of the tries of a delivery, in order.
func (w *world) story(at position) string {
	var parts []string
	w.journal.read(func() {
		for _, o := range w.journal.outcomes[at] {
			part := o.Result
			if o.Result == resultStale {
				part = fmt.Sprintf("stale (fence %d is refused, %d has claimed)", o.Grant.Fence, o.Stored)
			}
			if n := len(parts); n == 0 || parts[n-1] != part {
				parts = append(parts, part)
			}
		}
	})
	return strings.Join(parts, ", then ")
}

// round10 leaves out what nobody reads.
func round10(d time.Duration) time.Duration { return d.Round(10 * time.Millisecond) }
