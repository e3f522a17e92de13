package demo

import (
	"context"
	"fmt"
	"syscall"

	"github.com/onceward/onceward/examples/orders/service"
)

// late stops an instance whose COMMIT is on its way.
//
// Somebody closes a month of the books, so the COMMIT of an order with a line in that
// month waits in Postgres (a foreign key that is checked at COMMIT). The instance is
// stopped meanwhile, its lease ends, and another instance takes the lock over and looks at
// the order: it is not closed. Then the month is closed, and the COMMIT goes through.
//
// No look at the lease helps here, however late, since a COMMIT cannot be called back.
func (w *world) late(ctx context.Context) error {
	// Else the transaction has other orders as well, and keeps all that want them waiting.
	if err := w.quiet(ctx); err != nil {
		return err
	}
	if err := w.place(ctx, true, w.plan.late); err != nil {
		return err
	}
	victim, mine, theirs, err := w.cast(ctx, "")
	if err != nil {
		return err
	}
	w.screen.head("late: %s is stopped while its COMMIT is on its way", victim.name)
	e, err := w.event(ctx, service.Timeout, w.plan.late)
	if err != nil {
		return err
	}

	books, err := w.db.BeginTxx(ctx, nil)
	if err != nil {
		return err
	}
	defer books.Rollback() // after the commit below it does nothing
	var pid int
	if err := books.GetContext(ctx, &pid, `SELECT pg_backend_pid() FROM periods WHERE id = $1 FOR UPDATE`, periodLate); err != nil {
		return fmt.Errorf("lock period %s: %w", periodLate, err)
	}
	at, err := w.produce(ctx, e, mine)
	if err != nil {
		return err
	}
	holder, err := w.reached(ctx, at, e.ID())
	if err != nil {
		return err
	}
	err = poll(ctx, fmt.Sprintf("the COMMIT of %s to wait in Postgres", e.ID()), func(ctx context.Context) (waits bool, err error) {
		err = w.db.GetContext(ctx, &waits, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid)))`, pid)
		return waits, err
	})
	if err != nil {
		return err
	}
	if err := victim.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	w.lost(holder.grant, "paused") // it waits for its COMMIT, and releases behind that
	w.screen.say("%s has sent COMMIT for %s, and is stopped", holder.who(), service.LockName(e.Order))

	rivalAt, err := w.produce(ctx, e, theirs)
	if err != nil {
		return err
	}
	next, err := w.reached(ctx, rivalAt, e.ID())
	if err != nil {
		return err
	}
	w.screen.say("%s %s %s, and saw that it is not closed", next.who(), next.takes(), service.LockName(e.Order))

	if err := books.Commit(); err != nil {
		return fmt.Errorf("close period %s: %w", periodLate, err)
	}
	o, err := w.decided(ctx, rivalAt, e.ID())
	if err != nil {
		return err
	}
	w.screen.say("the COMMIT of %s went through, %s's %s: %s", victim.name, next.by, e.ID(), o.Result)
	if err := victim.signal(syscall.SIGCONT); err != nil {
		return err
	}
	if _, err := w.decided(ctx, at, e.ID()); err != nil {
		return err
	}
	w.screen.say("%s goes on, its %s: %s", victim.name, e.ID(), w.story(at))
	return nil
}
