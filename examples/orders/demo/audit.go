package demo

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/onceward/onceward/examples/orders/service"
)

// findings are what the audit of one world found.
type findings struct {
	Guard      service.Guard
	Took       time.Duration // from the first start of an instance until all had stopped
	Invariants []invariant
	Counts     []count
	Damage     int   // orders whose effects are not there exactly once
	Excess     int64 // cents in the ledger that are nobody's

	takeovers []takeover
	refusals  []refusal
	open      []string // records that are not accounted for
}

// An invariant is one line of the audit.
type invariant struct {
	Name   string
	Means  string
	How    string // a statement that returns Broken, or what else was asked
	Broken int64
}

// A count is a number that nothing is required of here.
type count struct {
	Name string
	N    int64
}

// A question is an invariant in SQL: the statement counts what is wrong.
type question struct{ name, means, sql string }

// damageSQL counts the orders that were not handled exactly once.
const damageSQL = `SELECT count(*) FROM orders o
WHERE (SELECT count(*) FROM refunds r WHERE r.order_id = o.id) <> 1
   OR (SELECT count(*) FROM stock_moves s WHERE s.order_id = o.id) <> 1
   OR (SELECT count(*) FROM ledger l WHERE l.order_id = o.id) <> 1`

// excessSQL is what the ledger has too much, in cents.
const excessSQL = `SELECT (coalesce((SELECT sum(amount) FROM ledger), 0) - coalesce((SELECT sum(amount) FROM orders), 0))::bigint`

var questions = []question{
	{
		"closed", "every order is closed",
		`SELECT count(*) FROM orders WHERE state <> 'closed'`,
	},
	{
		"refunded-once", "every order has one refund",
		`SELECT count(*) FROM orders o WHERE (SELECT count(*) FROM refunds r WHERE r.order_id = o.id AND r.amount = o.amount) <> 1`,
	},
	{
		"stock-once", "the stock of every order came back once",
		`SELECT count(*) FROM orders o WHERE (SELECT coalesce(sum(s.qty), 0) FROM stock_moves s WHERE s.order_id = o.id AND s.sku = o.sku) <> o.qty`,
	},
	{
		"ledger-once", "the ledger has one line for every order",
		`SELECT count(*) FROM orders o WHERE (SELECT count(*) FROM ledger l WHERE l.order_id = o.id) <> 1`,
	},
	{
		"ledger-balances", "the ledger, in cents, is what the orders add up to",
		`SELECT abs((` + excessSQL + `))`,
	},
	{
		"reminded-once", "the one reminder was written once",
		`SELECT abs(count(*) - 1) FROM notices`,
	},
}

// inboxQuestion is asked where there is an inbox.
var inboxQuestion = question{
	"inbox-row", "every closed order has its row in the inbox, and every row its effect",
	`SELECT count(*) FROM (SELECT 'timeout:' || id || ':' || extract(epoch FROM deadline)::bigint AS id FROM orders WHERE state = 'closed'
  UNION ALL SELECT 'remind:' || order_id || ':' || extract(epoch FROM deadline)::bigint FROM notices) e
FULL JOIN inbox i USING (id) WHERE i.key IS NULL OR e.id IS NULL`,
}

// audit looks at everything that is left.
func (w *world) audit(ctx context.Context, f *findings) error {
	asked := questions
	if w.guard.Claims() {
		asked = append(slices.Clone(questions), inboxQuestion)
	}
	for _, q := range asked {
		var broken int64
		if err := w.db.GetContext(ctx, &broken, q.sql); err != nil {
			return fmt.Errorf("invariant %s: %w", q.name, err)
		}
		f.Invariants = append(f.Invariants, invariant{q.name, q.means, q.sql, broken})
	}
	if err := w.db.GetContext(ctx, &f.Damage, damageSQL); err != nil {
		return fmt.Errorf("count damage: %w", err)
	}
	if err := w.db.GetContext(ctx, &f.Excess, excessSQL); err != nil {
		return fmt.Errorf("count excess: %w", err)
	}
	records, err := w.readTopics(ctx)
	if err != nil {
		return err
	}
	rows, err := w.decidedRows(ctx)
	if err != nil {
		return err
	}
	lag, err := w.lag(ctx)
	if err != nil {
		return fmt.Errorf("committed offsets: %w", err)
	}
	locks, err := w.locksLeft(ctx)
	if err != nil {
		return err
	}
	calls, refunds := w.payments.totals()
	var reconciled reconciliation
	w.journal.read(func() {
		reconciled = reconcile(records, w.journal, func(id string) bool { return rows[id] })
		f.open = reconciled.open
		f.takeovers = takeovers(w.journal.grants)
		f.refusals = refusals(w.journal.outcomes, w.journal.grants)
		f.observed(w.journal)
	})
	f.Counts = append(f.Counts,
		count{"records", int64(reconciled.records)},
		count{"reconciled-by-outcome", int64(reconciled.outcomes)},
		count{"reconciled-by-row", int64(reconciled.rows)},
		count{"payment-calls", int64(calls)},
	)
	add := func(name, means, how string, broken int) {
		f.Invariants = append(f.Invariants, invariant{name, means, how, int64(broken)})
	}
	add("paid-out-once", "the payment service made one refund for every order",
		"requests with one idempotency key are one refund", abs(refunds-w.opts.Orders))
	add("offsets-reconciled", "every record has a reported outcome or, of a killed instance, a row",
		"both topics read from start to end, against the reports of the children", len(reconciled.open))
	add("offsets-committed", "the group has committed every record",
		"end offsets of both topics minus committed offsets", int(lag))
	add("no-lock-left", "no lock outlives the instances",
		"SCAN MATCH "+w.cfg.Prefix+":{*}:lock:*", locks)
	f.required()
	return nil
}

// observed adds what was seen in a journal.
func (f *findings) observed(j *journal) {
	c := j.counts
	f.Counts = append(f.Counts,
		count{"deliveries", int64(c.deliveries)},
		count{"applied", int64(c.applied)},
		count{"duplicates", int64(c.duplicates)},
		count{"skipped", int64(c.skipped)},
		count{"stale", int64(c.stale)},
		count{"takeovers", int64(len(f.takeovers))},
		count{"busy", int64(c.busy)},
		count{"lost-or-again", int64(c.otherTries)},
		count{"scans", int64(c.rounds)},
		count{"scans-busy", int64(c.roundBusy)},
	)
	wrong := 0
	for _, m := range j.markings {
		if m.err != nil || m.depth != 2 {
			wrong++
		}
	}
	if len(j.markings) == 0 {
		wrong = 1
	}
	f.Invariants = append(f.Invariants, invariant{
		"reentered", "the scan job held its lock twice while it marked",
		"HGETALL of the lock of " + service.ScanLock + " while the job was marking", int64(wrong),
	})
}

// required adds what must have happened, or the run shows nothing.
func (f *findings) required() {
	for _, r := range []struct {
		count string
		means string
		holds bool
	}{
		{"duplicates", "duplicates were refused", f.Guard.Claims()},
		{"takeovers", "locks of dead and paused holders were taken over", f.Guard.Locks()},
		{"stale", "a holder whose lease had passed on was refused", f.Guard == service.Both},
		{"scans-busy", "a scan met a lock that was held, and left it", true},
	} {
		if !r.holds {
			continue
		}
		broken := int64(0)
		if f.count(r.count) == 0 {
			broken = 1
		}
		f.Invariants = append(f.Invariants, invariant{r.count + "-seen", r.means, "reports of the children", broken})
	}
	if f.Guard.Locks() {
		f.Invariants = append(f.Invariants, invariant{
			"evidence", "both owners and both fences of each takeover and each stale claim are known",
			"reports of the children", int64(incomplete(f.takeovers, f.refusals)),
		})
	}
}

func (f *findings) count(name string) int64 {
	for _, c := range f.Counts {
		if c.Name == name {
			return c.N
		}
	}
	return 0
}

// broken returns how many invariants are.
func (f *findings) broken() int {
	n := 0
	for _, i := range f.Invariants {
		if i.Broken != 0 {
			n++
		}
	}
	return n
}

// locksLeft counts the locks that are still there when a lease has passed: one whose
// holder was killed or lost it ends by itself until then.
func (w *world) locksLeft(ctx context.Context) (int, error) {
	until := time.Now().Add(w.opts.timing.lease)
	left := 0
	err := poll(ctx, "the last lease to end", func(ctx context.Context) (bool, error) {
		keys, err := w.locks(ctx, "*")
		left = len(keys)
		return left == 0 || time.Now().After(until), err
	})
	return left, err
}

func abs(n int) int { return max(n, -n) }
