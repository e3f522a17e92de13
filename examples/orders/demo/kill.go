package demo

import (
	"context"
	"fmt"
	"time"

	"github.com/onceward/onceward/examples/orders/service"
)

// kill kills an instance that has told Kafka about overdue orders and not marked them, and
// that holds the lock of one more order.
//
// Both locks are taken over when their leases end. The next scan tells the same events
// again, with the same IDs. Its partitions go to others when Kafka misses it, and so does
// what it had in hand.
func (w *world) kill(ctx context.Context) error {
	if err := w.place(ctx, true, w.plan.killed); err != nil {
		return err
	}
	e, err := w.event(ctx, service.Timeout, w.plan.killed)
	if err != nil {
		return err
	}
	if err := w.announced(ctx); err != nil { // so that nothing but the second wave is told
		return err
	}
	// Whoever scans it is the victim.
	scan, openScan := w.payments.shut("", markingPath)
	defer openScan()
	if err := w.place(ctx, false, w.plan.wave2...); err != nil {
		return err
	}
	if err := scan.wait(ctx, "the scan job to tell the second wave"); err != nil {
		return err
	}
	var m depthSeen
	w.journal.read(func() { m = w.journal.markings[len(w.journal.markings)-1] })
	victim, mine, theirs, err := w.cast(ctx, m.From)
	if err != nil {
		return err
	}
	w.screen.head("kill: %s is killed between telling %d events and marking them, and between lock and transaction", victim.name, m.Count)
	w.screen.say("%s (owner %s, fence %d) holds %s at depth %d", m.From, m.Grant.Owner, m.Grant.Fence, m.Grant.Lock, m.depth)

	_, open := w.payments.shut(victim.name, e.ID())
	defer open()
	at, err := w.produce(ctx, e, mine)
	if err != nil {
		return err
	}
	holder, err := w.reached(ctx, at, e.ID())
	if err != nil {
		return err
	}
	w.screen.say("%s holds %s: not yet claimed", holder.who(), service.LockName(e.Order))
	victim.kill()
	died := time.Now()
	delete(w.instances, victim.name)
	w.journal.change(func() { w.journal.dead[victim.name] = true })
	w.lost(holder.grant, "killed")
	w.lost(m.Grant, "killed")
	openScan()

	rivalAt, err := w.produce(ctx, e, theirs)
	if err != nil {
		return err
	}
	next, err := w.reached(ctx, rivalAt, e.ID())
	if err != nil {
		return err
	}
	after := time.Since(died)
	o, err := w.decided(ctx, rivalAt, e.ID())
	if err != nil {
		return err
	}
	w.screen.say("%s %s %s after %v: %s", next.who(), next.takes(), service.LockName(e.Order), round10(after), o.Result)

	var again depthSeen
	err = w.journal.await(ctx, "another instance to take over "+service.ScanLock, func() bool {
		again = w.journal.markings[len(w.journal.markings)-1]
		return again.Grant != m.Grant
	})
	if err != nil {
		return err
	}
	w.screen.say("%s (owner %s, fence %d) took over %s, and tells %d events again", again.From, again.Grant.Owner, again.Grant.Fence, again.Grant.Lock, again.Count)

	if err := w.start("D"); err != nil {
		return err
	}
	w.screen.say("instance D (pid %d) takes the place of %s", w.instances["D"].pid, victim.name)
	left, err := w.decided(ctx, at, e.ID())
	if err != nil {
		return err
	}
	w.screen.say("%s got what %s had in hand, %v after its death: %s", left.by, victim.name, round10(time.Since(died)), fmt.Sprintf("%s %s", e.ID(), left.Result))
	return nil
}
