package inboxtest

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/onceward/onceward/inbox"
)

// Inboxes with one fault each, and the checks that must find it.
var brokenInboxes = []struct {
	name   string
	caught []string
	fault  func(f *faulty)
}{
	{"keeps no row", []string{"applies once", "remembers", "decides what is skipped", "applies for one of many at once"}, func(f *faulty) {
		f.handler = func(_ inbox.Message, tx *sqlx.Tx, call func() error) error {
			tx.MustExec("DELETE FROM inbox")
			return call()
		}
	}},
	{"remembers in its own memory", []string{"remembers"}, func(f *faulty) {
		var mu sync.Mutex
		seen := map[string]bool{}
		f.handler = func(_ inbox.Message, tx *sqlx.Tx, call func() error) error {
			tx.MustExec("DELETE FROM inbox")
			return call()
		}
		f.whole = func(ctx context.Context, ms []inbox.Message, fn handler) []inbox.Result {
			return f.each(ms, func(m inbox.Message, i int) inbox.Result {
				mu.Lock()
				defer mu.Unlock()
				if seen[m.ID] {
					return inbox.Result{Outcome: inbox.Duplicate}
				}
				r := f.one(m, func(ctx context.Context, tx *sqlx.Tx, _ int) error { return fn(ctx, tx, i) })
				seen[m.ID] = r.Outcome.Decided()
				return r
			})
		}
	}},
	{"has one scope for all", []string{"knows scopes apart"}, func(f *faulty) {
		f.settings = func(cfg *inbox.Config) { cfg.Tenant, cfg.Consumer = "", "all" }
	}},
	{"has no tenants", []string{"knows scopes apart"}, func(f *faulty) {
		f.settings = func(cfg *inbox.Config) { cfg.Tenant = "" }
	}},
	{"joins tenant and consumer", []string{"knows scopes apart"}, func(f *faulty) {
		f.settings = func(cfg *inbox.Config) { cfg.Tenant, cfg.Consumer = "", cfg.Tenant+cfg.Consumer }
	}},
	{"folds the case of IDs", []string{"knows IDs apart"}, ids(strings.ToLower)},
	{"trims IDs", []string{"knows IDs apart"}, ids(strings.TrimSpace)},
	{"makes IDs valid UTF-8", []string{"knows IDs apart"}, ids(func(id string) string { return strings.ToValidUTF8(id, "?") })},
	{"cuts long IDs", []string{"knows IDs apart"}, ids(func(id string) string { return id[:min(len(id), inbox.MaxIDBytes-1)] })},
	{"makes up an ID", []string{"refuses what has no identity"}, ids(func(id string) string {
		if strings.TrimSpace(id) == "" {
			return rand.Text()
		}
		return id
	})},

	{"commits what failed", []string{"undoes a failure", "keeps a failing one apart"}, forgive},
	{"commits what panicked", []string{"undoes a panic"}, func(f *faulty) {
		f.handler = func(_ inbox.Message, _ *sqlx.Tx, call func() error) (err error) {
			defer func() {
				if recover() != nil {
					err = skip{}
				}
			}()
			return call()
		}
		f.result = func(_ inbox.Message, r *inbox.Result) {
			if r.Outcome == inbox.Skipped {
				*r = failedBy(&inbox.PanicError{Value: "boom"})
			}
		}
	}},
	{"lets no failure be tried again", []string{"undoes a failure", "undoes a panic", "finds a hidden error", "finds who ends the transaction", "moves no fence by a failure", "is busy after a while"}, func(f *faulty) {
		f.result = func(m inbox.Message, r *inbox.Result) {
			if r.Outcome == inbox.Failed && m.ID != "" {
				f.mark(m)
			}
		}
	}},
	{"writes down what is done before it is", []string{"undoes a failure", "undoes when ctx ends"}, func(f *faulty) {
		f.whole = func(ctx context.Context, ms []inbox.Message, fn handler) []inbox.Result {
			return f.each(ms, func(m inbox.Message, i int) inbox.Result {
				if r := f.mark(m); r.Outcome != inbox.Applied {
					return r
				}
				return failedBy(f.inTx(ctx, fn, i))
			})
		}
	}},
	{"writes down what is done after it is", []string{"waits for a rival"}, func(f *faulty) {
		f.whole = func(ctx context.Context, ms []inbox.Message, fn handler) []inbox.Result {
			return f.each(ms, func(m inbox.Message, i int) inbox.Result {
				if f.decided(m) {
					return inbox.Result{Outcome: inbox.Duplicate}
				}
				if err := f.inTx(ctx, fn, i); err != nil {
					return failedBy(err)
				}
				return f.mark(m)
			})
		}
	}},
	{"writes beside the transaction", []string{"undoes a failure", "dies after the handler", "dies before COMMIT"}, func(f *faulty) {
		f.whole = func(ctx context.Context, ms []inbox.Message, fn handler) []inbox.Result {
			return f.Inbox.ApplyBatch(ctx, ms, func(ctx context.Context, _ *sqlx.Tx, i int) error {
				tx := f.db.MustBegin()
				defer tx.Commit()
				return fn(ctx, tx, i)
			})
		}
	}},
	{"forgives hidden errors", []string{"finds a hidden error", "keeps a failing one apart"}, func(f *faulty) {
		f.handler = func(_ inbox.Message, tx *sqlx.Tx, call func() error) error {
			tx.MustExec("SAVEPOINT before")
			err := call()
			if err == nil {
				if _, broken := tx.Exec("RELEASE SAVEPOINT before"); broken != nil {
					tx.MustExec("ROLLBACK TO SAVEPOINT before")
				}
			}
			return err
		}
	}},
	{"does not see who ends the transaction", []string{"finds who ends the transaction"}, func(f *faulty) {
		f.result = func(_ inbox.Message, r *inbox.Result) {
			if errors.Is(r.Err, inbox.ErrEnded) {
				*r = inbox.Result{Outcome: inbox.Applied}
			}
		}
	}},
	{"undoes what is skipped", []string{"decides what is skipped", "answers in order"}, func(f *faulty) {
		f.handler = func(_ inbox.Message, _ *sqlx.Tx, call func() error) error {
			err := call()
			if errors.As(err, new(skip)) {
				return errMade
			}
			return err
		}
		f.result = func(_ inbox.Message, r *inbox.Result) {
			if errors.Is(r.Err, errMade) {
				*r = inbox.Result{Outcome: inbox.Skipped, Err: skip{}}
			}
		}
	}},
	{"takes a conflict for a duplicate", []string{"tells a conflict", "waits for a rival"}, func(f *faulty) {
		f.message = func(m *inbox.Message) { m.Digest = nil }
	}},
	{"compares with nothing", []string{"compares what there is"}, func(f *faulty) {
		f.message = func(m *inbox.Message) { m.Digest = append([]byte{0}, m.Digest...) }
	}},
	{"does not hear of the end of ctx", []string{"undoes when ctx ends", "does not begin once ctx is over", "goes with ctx"}, func(f *faulty) {
		f.ctx = context.WithoutCancel
	}},
	{"charges the end of ctx", []string{"undoes when ctx ends", "does not begin once ctx is over", "goes with ctx"}, func(f *faulty) {
		f.result = func(m inbox.Message, r *inbox.Result) { charge(m, inbox.Again, r) }
	}},

	{"looks at no fence", []string{"refuses a stale fence", "has a fence per resource", "holds the fence until COMMIT"}, func(f *faulty) {
		f.message = func(m *inbox.Message) { m.Fences = nil }
	}},
	{"takes a grant for stale the second time", []string{"refuses a stale fence"}, func(f *faulty) {
		f.handler = func(_ inbox.Message, tx *sqlx.Tx, call func() error) error {
			tx.MustExec("UPDATE inbox_fence SET token = token + 1")
			return call()
		}
	}},
	{"folds the case of resources", []string{"has a fence per resource"}, resources(strings.ToLower)},
	{"has one resource", []string{"has a fence per resource", "asks for all of several fences"}, resources(func(string) string { return "x" })},
	{"has resources per inbox", []string{"has a fence per resource"}, func(f *faulty) {
		own := rand.Text()
		resources(func(r string) string { return own + r })(f)
	}},
	{"moves the fence of a failure", []string{"moves no fence by a failure"}, func(f *faulty) {
		f.result = func(m inbox.Message, r *inbox.Result) {
			if r.Outcome == inbox.Failed {
				f.mark(unique(m.Fences...))
			}
		}
	}},
	{"looks at the fence first", []string{"decides duplicates first"}, func(f *faulty) {
		f.result = func(m inbox.Message, r *inbox.Result) {
			if r.Outcome == inbox.Duplicate && m.Fences != nil {
				if probe := f.mark(unique(m.Fences...)); probe.Outcome == inbox.Stale {
					*r = probe
				}
			}
		}
	}},
	{"looks at one fence", []string{"asks for all of several fences"}, func(f *faulty) {
		f.message = func(m *inbox.Message) { m.Fences = m.Fences[:min(len(m.Fences), 1)] }
	}},
	{"moves the fences of a stale one", []string{"asks for all of several fences"}, func(f *faulty) {
		f.result = func(m inbox.Message, r *inbox.Result) {
			if r.Outcome == inbox.Stale {
				for _, fence := range m.Fences {
					f.mark(unique(fence))
				}
			}
		}
	}},
	{"lets go of the fence after the claim", []string{"holds the fence until COMMIT", "lets nobody follow a newer one"}, func(f *faulty) {
		f.whole = func(ctx context.Context, ms []inbox.Message, fn handler) []inbox.Result {
			return f.each(ms, func(m inbox.Message, i int) inbox.Result {
				if r := f.mark(unique(m.Fences...)); r.Outcome != inbox.Applied {
					return r
				}
				m.Fences = nil
				return f.one(m, func(ctx context.Context, tx *sqlx.Tx, _ int) error { return fn(ctx, tx, i) })
			})
		}
	}},
	{"believes that the newer one commits", []string{"lets nobody follow a newer one"}, func(f *faulty) {
		f.whole = func(ctx context.Context, ms []inbox.Message, fn handler) []inbox.Result {
			rs := f.Inbox.ApplyBatch(ctx, ms, func(ctx context.Context, tx *sqlx.Tx, i int) error {
				if strings.HasPrefix(ms[i].ID, "older") { // it waited, or it would be stale
					return errMade
				}
				return fn(ctx, tx, i)
			})
			for i, r := range rs {
				if errors.Is(r.Err, errMade) {
					rs[i] = inbox.Result{Outcome: inbox.Stale, Err: &inbox.StaleError{ID: ms[i].ID}}
				}
			}
			return rs
		}
	}},

	{"is busy at once", []string{"waits for a rival", "is busy after a while"}, func(f *faulty) {
		f.settings = func(cfg *inbox.Config) { cfg.LockTimeout = time.Millisecond }
	}},
	{"takes busy for a duplicate", []string{"is busy after a while", "spares the neighbours of a busy one"}, func(f *faulty) {
		f.result = func(_ inbox.Message, r *inbox.Result) {
			if r.Outcome == inbox.Busy {
				*r = inbox.Result{Outcome: inbox.Duplicate}
			}
		}
	}},
	{"charges busy", []string{"is busy after a while"}, func(f *faulty) {
		f.result = func(m inbox.Message, r *inbox.Result) { charge(m, inbox.Busy, r) }
	}},
	{"is busy for all", []string{"spares the neighbours of a busy one"}, func(f *faulty) {
		f.whole = func(ctx context.Context, ms []inbox.Message, fn handler) []inbox.Result {
			rs := f.Inbox.ApplyBatch(ctx, ms, fn)
			for _, r := range rs {
				if r.Outcome == inbox.Busy {
					for i := range rs {
						rs[i] = r
					}
				}
			}
			return rs
		}
	}},
	{"takes its locks in the order of the batch", []string{"does not deadlock"}, func(f *faulty) { f.whole = f.unsorted }},

	{"answers the other way round", []string{"answers in order", "keeps a failing one apart"}, func(f *faulty) {
		f.whole = func(ctx context.Context, ms []inbox.Message, fn handler) []inbox.Result {
			rs := f.Inbox.ApplyBatch(ctx, ms, fn)
			slices.Reverse(rs)
			return rs
		}
	}},
	{"counts what is fresh", []string{"answers in order"}, func(f *faulty) {
		f.whole = func(ctx context.Context, ms []inbox.Message, fn handler) []inbox.Result {
			n := 0
			return f.Inbox.ApplyBatch(ctx, ms, func(ctx context.Context, tx *sqlx.Tx, _ int) error {
				n++
				return fn(ctx, tx, n-1)
			})
		}
	}},
	{"fails all with one", []string{"keeps a failing one apart", "answers in order"}, func(f *faulty) {
		f.whole = func(ctx context.Context, ms []inbox.Message, fn handler) []inbox.Result {
			rs := f.Inbox.ApplyBatch(ctx, ms, fn)
			for _, r := range rs {
				if r.Outcome == inbox.Failed {
					for i := range rs {
						rs[i] = r
					}
				}
			}
			return rs
		}
	}},
	{"applies twins one by one", []string{"applies the first of twins", "shares a transaction"}, func(f *faulty) {
		f.whole = func(ctx context.Context, ms []inbox.Message, fn handler) []inbox.Result {
			return f.each(ms, func(m inbox.Message, i int) inbox.Result {
				return f.one(m, func(ctx context.Context, tx *sqlx.Tx, _ int) error { return fn(ctx, tx, i) })
			})
		}
	}},
	{"takes the first hundred", []string{"takes any number"}, func(f *faulty) {
		f.whole = func(ctx context.Context, ms []inbox.Message, fn handler) []inbox.Result {
			rs := f.Inbox.ApplyBatch(ctx, ms[:min(len(ms), 100)], fn)
			return append(rs, slices.Repeat([]inbox.Result{{Outcome: inbox.Duplicate}}, len(ms)-len(rs))...)
		}
	}},
	{"commits what came before the end of ctx", []string{"goes with ctx"}, func(f *faulty) {
		f.whole = func(ctx context.Context, ms []inbox.Message, fn handler) []inbox.Result {
			return f.each(ms, func(m inbox.Message, i int) inbox.Result {
				return f.Inbox.ApplyBatch(ctx, []inbox.Message{m}, func(ctx context.Context, tx *sqlx.Tx, _ int) error { return fn(ctx, tx, i) })[0]
			})
		}
	}},

	{"takes who died for done", []string{"dies after the claim", "dies after the handler", "dies before COMMIT"}, func(f *faulty) {
		f.result = func(m inbox.Message, r *inbox.Result) {
			if errors.Is(r.Err, ErrCrashed) {
				f.mark(m)
			}
		}
	}},
	{"takes unknown for undone", []string{"dies after COMMIT"}, func(f *faulty) {
		f.result = func(m inbox.Message, r *inbox.Result) {
			if errors.Is(r.Err, inbox.ErrUnknown) {
				f.db.MustExec("DELETE FROM inbox WHERE id = $1", m.ID)
			}
		}
	}},
	{"charges who died", []string{"dies after the claim", "dies after COMMIT"}, func(f *faulty) {
		f.result = func(m inbox.Message, r *inbox.Result) { charge(m, inbox.Again, r) }
	}},
	{"lets a frozen one hold on", []string{"frees what a frozen one holds"}, func(f *faulty) {
		f.settings = func(cfg *inbox.Config) { cfg.MaxHold = time.Hour }
	}},
}

func ids(change func(id string) string) func(f *faulty) {
	return func(f *faulty) { f.message = func(m *inbox.Message) { m.ID = change(m.ID) } }
}

func resources(change func(resource string) string) func(f *faulty) {
	return func(f *faulty) {
		f.message = func(m *inbox.Message) {
			m.Fences = slices.Clone(m.Fences)
			for i := range m.Fences {
				m.Fences[i].Resource = change(m.Fences[i].Resource)
			}
		}
	}
}

// forgive commits what a failed handler wrote, and reports its failure.
func forgive(f *faulty) {
	var mu sync.Mutex
	errs := map[string]error{}
	f.handler = func(m inbox.Message, _ *sqlx.Tx, call func() error) error {
		err := call()
		if errors.Is(err, errBoom) {
			mu.Lock()
			defer mu.Unlock()
			errs[m.ID] = err
			return nil
		}
		return err
	}
	f.result = func(m inbox.Message, r *inbox.Result) {
		mu.Lock()
		defer mu.Unlock()
		if err := errs[m.ID]; err != nil {
			*r = failedBy(err)
		}
	}
}

func TestChecksFindFaults(t *testing.T) {
	byName := map[string]*check{}
	unproven := map[string]bool{}
	for _, group := range checks {
		for i := range group {
			byName[group[i].name], unproven[group[i].name] = &group[i], true
		}
	}
	for _, b := range brokenInboxes {
		for _, name := range b.caught {
			c := byName[name]
			if c == nil {
				t.Errorf("%s: there is no check %q", b.name, name)
				continue
			}
			delete(unproven, name)
			t.Run(b.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				err := c.run(t.Context(), newDB(t), func(db *sqlx.DB, cfg inbox.Config) (Inbox, error) {
					f := &faulty{db: db}
					b.fault(f)
					if f.settings != nil {
						f.settings(&cfg)
					}
					box, err := inbox.New(db, cfg)
					f.Inbox = box
					return f, err
				})
				if err == nil {
					t.Fatalf("an inbox that %s was let pass\ncontract: %s", b.name, c.contract)
				}
				t.Log(err)
			})
		}
	}
	for name := range unproven {
		t.Errorf("no broken inbox shows that check %q finds anything", name)
	}
}
