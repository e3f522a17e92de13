package demo

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/onceward/onceward/examples/orders/service"
)

// pause stops an instance between its locks and its transaction, for longer than its
// leases last.
//
// It holds three orders. While it is stopped, another instance gets the timeout of the
// first one from the other topic, and a reminder of the second. On waking, it goes on
// where it was: it has looked at its orders, which were not closed, and has asked for the
// refunds. What it must not do is act on that.
//
// With an inbox it is stopped as late as can be, when its claim is on its way: so it is
// the claim that refuses it, and not a look at the lease. Without one it is stopped while
// it waits for the refund.
func (w *world) pause(ctx context.Context) error {
	if err := w.place(ctx, true, w.plan.pause...); err != nil {
		return err
	}
	victim, mine, theirs, err := w.cast(ctx, "")
	if err != nil {
		return err
	}
	until := ""
	if w.guard.Locks() {
		until = fmt.Sprintf(", for longer than its lease of %v", w.opts.timing.lease)
	}
	w.screen.head("pause: %s is stopped between its look at orders and its transaction%s", victim.name, until)

	events := make([]service.Event, held)
	at := make([]position, held)
	var gates []*gate
	var opens []func()
	for i, order := range w.plan.pause {
		if events[i], err = w.event(ctx, service.Timeout, order); err != nil {
			return err
		}
		what := events[i].ID()
		if w.guard.Claims() {
			what = claimOf(what)
		}
		g, open := w.payments.shut(victim.name, what)
		defer open()
		gates, opens = append(gates, g), append(opens, open)
	}
	for i, e := range events {
		if at[i], err = w.produce(ctx, e, mine); err != nil {
			return err
		}
	}
	holders := make([]tenure, held)
	for i, e := range events {
		if holders[i], err = w.reached(ctx, at[i], e.ID()); err != nil {
			return err
		}
		if err := gates[i].wait(ctx, victim.name+" to get as far as it may with "+e.ID()); err != nil {
			return err
		}
		w.screen.say("%s holds %s: not yet claimed", holders[i].who(), service.LockName(e.Order))
	}
	if err := w.stopOutside(ctx, victim); err != nil {
		return err
	}
	stopped := time.Now()
	w.screen.say("%s is stopped", victim.name)
	// It cannot have released these: it waits for answers that it did not get.
	for _, h := range holders {
		w.lost(h.grant, "paused")
	}

	remind := events[1]
	remind.Kind = service.Remind
	rivals := []service.Event{events[0], remind}
	rivalAt := make([]position, len(rivals))
	for i, e := range rivals {
		if rivalAt[i], err = w.produce(ctx, e, theirs); err != nil {
			return err
		}
	}
	for i, e := range rivals {
		next, err := w.reached(ctx, rivalAt[i], e.ID())
		if err != nil {
			return err
		}
		after := time.Since(stopped)
		o, err := w.decided(ctx, rivalAt[i], e.ID())
		if err != nil {
			return err
		}
		w.screen.say("%s %s %s after %v: %s %s", next.who(), next.takes(), service.LockName(e.Order), round10(after), e.Kind, o.Result)
	}

	for _, open := range opens { // nobody is there to take the answers yet
		open()
	}
	if err := victim.signal(syscall.SIGCONT); err != nil {
		return err
	}
	w.screen.say("%s goes on after %v", victim.name, round10(time.Since(stopped)))
	for i, e := range events {
		if _, err := w.decided(ctx, at[i], e.ID()); err != nil {
			return err
		}
		w.screen.say("its %s: %s", e.ID(), w.story(at[i]))
	}
	return nil
}

const openSQL = `SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND backend_xid IS NOT NULL`

// stopOutside stops an instance when none of its transactions has written anything: its
// other workers go on, and one that is stopped behind its claim keeps rivals waiting in
// Postgres, which is another scene. So if there is such a transaction, it goes on for a
// moment.
func (w *world) stopOutside(ctx context.Context, in *instance) error {
	stopped := false
	return poll(ctx, in.name+" to be stopped when it has written nothing", func(ctx context.Context) (bool, error) {
		var open int
		if err := w.db.GetContext(ctx, &open, openSQL, w.session(in.name)); err != nil {
			return false, err
		}
		if stopped && open == 0 {
			return true, nil
		}
		stopped = !stopped
		if stopped {
			return false, in.signal(syscall.SIGSTOP)
		}
		return false, in.signal(syscall.SIGCONT)
	})
}
