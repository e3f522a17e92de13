package demo

import (
	"context"
	"syscall"
	"time"

	"github.com/onceward/onceward/examples/orders/service"
)

// pause stops an instance between its locks and its transaction, for longer than its
// leases last.
//
// It holds three orders. While it is stopped, another instance gets the timeout of the
// first one from the other topic, and a reminder of the second. On waking, it goes on
// where it was: it has looked at its orders, which were not closed, and has the payment
// service's answers. What it must not do is act on that.
func (w *world) pause(ctx context.Context) error {
	if err := w.place(ctx, true, w.plan.pause...); err != nil {
		return err
	}
	victim, mine, theirs, err := w.cast(ctx, "")
	if err != nil {
		return err
	}
	w.screen.head("pause: %s is stopped between lock and transaction, for longer than its lease of %v", victim.name, lease)

	events := make([]service.Event, held)
	at := make([]position, held)
	var opens []func()
	for i, order := range w.plan.pause {
		if events[i], err = w.event(ctx, service.Timeout, order); err != nil {
			return err
		}
		_, open := w.payments.shut(victim.name, events[i].ID())
		defer open()
		opens = append(opens, open)
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
		w.screen.say("%s holds %s: not yet claimed", holders[i].who(), service.LockName(e.Order))
	}
	if err := w.stopOutside(ctx, victim); err != nil {
		return err
	}
	stopped := time.Now()
	// From here to SIGCONT it cannot have released anything: it waits for refunds that
	// are not answered.
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
		w.screen.say("%s took over %s after %v: %s %s", next.who(), service.LockName(e.Order), round10(after), e.Kind, o.Result)
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

const openSQL = `SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND xact_start IS NOT NULL`

// stopOutside stops an instance outside of all transactions: its workers that do not wait
// for a refund go on, and one that stops inside keeps others waiting in Postgres, which is
// another scene. So if there is a transaction, it goes on for a moment.
func (w *world) stopOutside(ctx context.Context, in *instance) error {
	stopped := false
	return poll(ctx, in.name+" to be stopped outside of its transactions", func(ctx context.Context) (bool, error) {
		// Only the second look counts: a BEGIN may have been on its way at the first.
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
