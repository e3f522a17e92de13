package middleware_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/internal/devstack/devtest"
	"github.com/onceward/onceward/middleware"
	"github.com/onceward/onceward/reentrant"
	"github.com/twmb/franz-go/pkg/kgo"
)

// effects returns a database with a table of effects, and a handler that adds to it:
// it fails, panics or skips afterwards if the record's value is in errs.
func effects(t *testing.T, errs map[string]error) (*sqlx.DB, middleware.TxFunc) {
	t.Helper()
	db := devtest.Postgres(t)
	if _, err := db.ExecContext(t.Context(), "CREATE TABLE effect (v text)"); err != nil {
		t.Fatal(err)
	}
	return db, func(ctx context.Context, tx *sqlx.Tx, r *kgo.Record) error {
		if _, err := tx.ExecContext(ctx, "INSERT INTO effect VALUES ($1)", string(r.Value)); err != nil {
			return err
		}
		err := errs[string(r.Value)]
		if err != nil && err.Error() == "panic" {
			panic(err)
		}
		return err
	}
}

func newInbox(t *testing.T, db *sqlx.DB) *inbox.Inbox {
	t.Helper()
	if err := inbox.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	box, err := inbox.New(db, inbox.Config{Consumer: "test", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return box
}

func wantEffects(t *testing.T, db *sqlx.DB, want map[string]int) {
	t.Helper()
	var rows []struct {
		V string
		N int
	}
	if err := db.SelectContext(t.Context(), &rows, "SELECT v, count(*) AS n FROM effect GROUP BY v"); err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, r := range rows {
		got[r.V] = r.N
	}
	for v, n := range want {
		if got[v] != n {
			t.Errorf("effect of %s happened %d times, want %d", v, got[v], n)
		}
	}
	if len(got) > len(want) {
		t.Errorf("effects = %v, want %v", got, want)
	}
}

func TestInbox_OnceWithLock(t *testing.T) {
	boom, skip := errors.New("boom"), middleware.Skip("not ours")
	fails := map[string]error{"b:1": boom, "c:1": errors.New("panic"), "d:1": skip}
	db, insert := effects(t, fails)
	l, _ := newLocker(t)
	var events []middleware.Event
	h := middleware.Chain(middleware.Inbox(newInbox(t, db), insert),
		middleware.Observe(func(e middleware.Event) { events = append(events, e) }), middleware.Lock(l))

	errs := handle(t, h, messages(t, "a:1", "b:1", "c:1", "d:1"))
	if errs[0] != nil || !errors.Is(errs[1], boom) || middleware.Classify(errs[2]) != middleware.Retry || middleware.Classify(errs[3]) != middleware.Decided {
		t.Errorf("errors = %v, want nil, boom, a panic, skipped", errs)
	}
	for i, want := range []inbox.Outcome{inbox.Applied, inbox.Failed, inbox.Failed, inbox.Skipped} {
		if events[i].Outcome != want {
			t.Errorf("outcome of %s = %v, want %v", events[i].Message.ID, events[i].Outcome, want)
		}
	}
	wantEffects(t, db, map[string]int{"a:1": 1, "d:1": 1})

	clear(fails)
	events = nil
	for i, err := range handle(t, h, messages(t, "a:1", "b:1", "c:1", "d:1")) {
		if err != nil {
			t.Errorf("second delivery of %s: %v", events[i].Message.ID, err)
		}
	}
	for i, want := range []inbox.Outcome{inbox.Duplicate, inbox.Applied, inbox.Applied, inbox.Duplicate} {
		if events[i].Outcome != want {
			t.Errorf("second outcome of %s = %v, want %v", events[i].Message.ID, events[i].Outcome, want)
		}
	}
	wantEffects(t, db, map[string]int{"a:1": 1, "b:1": 1, "c:1": 1, "d:1": 1})
}

func TestInbox_TxBatchFunc(t *testing.T) {
	db, _ := effects(t, nil)
	boom := errors.New("boom")
	fail := true
	var sizes []int
	h := middleware.Inbox(newInbox(t, db), middleware.TxBatchFunc(func(ctx context.Context, tx *sqlx.Tx, rs []*kgo.Record) []error {
		sizes = append(sizes, len(rs))
		errs := make([]error, len(rs))
		for i, r := range rs {
			if _, err := tx.ExecContext(ctx, "INSERT INTO effect VALUES ($1)", string(r.Value)); err != nil {
				errs[i] = err
			} else if fail && string(r.Value) == "b:1" {
				errs[i] = boom
			}
		}
		return errs
	}))
	errs := handle(t, h, messages(t, "a:1", "b:1", "c:1"))
	if errs[0] != nil || !errors.Is(errs[1], boom) || errs[2] != nil {
		t.Errorf("errors = %v, want only the second", errs)
	}
	wantEffects(t, db, map[string]int{"a:1": 1, "c:1": 1})
	fail = false
	for _, err := range handle(t, h, messages(t, "a:1", "b:1", "c:1")) {
		if err != nil {
			t.Error(err)
		}
	}
	wantEffects(t, db, map[string]int{"a:1": 1, "b:1": 1, "c:1": 1})
	if want := []int{3, 2, 1}; !slices.Equal(sizes, want) { // all; without the bad one; the fresh one
		t.Errorf("records per call = %v, want %v", sizes, want)
	}
}

// A holder that went on after its lock had passed to another one is refused, once
// that one has claimed.
func TestInbox_RefusesTheOldHolder(t *testing.T) {
	db, insert := effects(t, nil)
	box := newInbox(t, db)
	l, _ := newLocker(t)
	old, err := l.Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	// For the others its lock is gone, and it does not know yet.
	if err := l.Inspector().Break(t.Context(), "a", old.Fence()); err != nil {
		t.Fatal(err)
	}
	h := middleware.Chain(middleware.Inbox(box, insert), middleware.Lock(l))
	if errs := handle(t, h, messages(t, "a:2")); errs[0] != nil {
		t.Fatal(errs[0])
	}
	zombie := middleware.Inbox(box, insert)
	errs := zombie.Handle(reentrant.With(t.Context(), old), messages(t, "a:1"))
	var stale *inbox.StaleError
	if !errors.As(errs[0], &stale) || stale.Token != old.Fence() || stale.Stored <= old.Fence() || stale.Resource != old.Resource() {
		t.Errorf("the old holder got %v, want stale with both fences", errs[0])
	}
	wantEffects(t, db, map[string]int{"a:2": 1})
	if errs := handle(t, h, messages(t, "a:1")); errs[0] != nil { // with a new lease it is applied
		t.Error(errs[0])
	}
	wantEffects(t, db, map[string]int{"a:1": 1, "a:2": 1})
}

// A lease that is lost before the claim takes its message out of the batch.
func TestInbox_LostLeaseLeavesTheBatch(t *testing.T) {
	db, insert := effects(t, nil)
	l, _ := newLocker(t)
	leases, errs := l.AcquireEach(t.Context(), []string{"a", "b"})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if err := leases[0].Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	h := middleware.Inbox(newInbox(t, db), insert)
	errs = h.Handle(reentrant.With(t.Context(), leases...), messages(t, "a:1", "b:1"))
	if !errors.Is(errs[0], reentrant.ErrReleased) || errs[1] != nil {
		t.Errorf("errors = %v, want released, nil", errs)
	}
	wantEffects(t, db, map[string]int{"b:1": 1})
	l.ReleaseEach(t.Context(), leases[1:])
}

// A lock that is lost while the handler works ends its query. The driver calls that
// by a name of its own; it is not the message's fault all the same.
func TestInbox_LockLostDuringQuery(t *testing.T) {
	db, _ := effects(t, nil)
	l, _ := newLocker(t)
	lease, err := l.Acquire(t.Context(), "a", reentrant.FixedLease(reentrant.MinTTL))
	if err != nil {
		t.Fatal(err)
	}
	h := middleware.Inbox(newInbox(t, db), middleware.TxFunc(func(ctx context.Context, tx *sqlx.Tx, _ *kgo.Record) error {
		_, err := tx.ExecContext(ctx, "SELECT pg_sleep(60)")
		return err
	}))
	errs := h.Handle(reentrant.With(t.Context(), lease), messages(t, "a:1"))
	if !errors.Is(errs[0], reentrant.ErrLost) || middleware.Classify(errs[0]) != middleware.Uncharged {
		t.Errorf("error = %v (%v), want a lost lock, uncharged", errs[0], middleware.Classify(errs[0]))
	}
}

// One ID, another value: the default digest is that of the value.
func TestInbox_ConflictingValue(t *testing.T) {
	db, insert := effects(t, nil)
	h := middleware.Inbox(newInbox(t, db), insert)
	ms := messages(t, "a:1", "a:1")
	if errs := handle(t, h, ms[:1]); errs[0] != nil {
		t.Fatal(errs[0])
	}
	ms[1].Record = record("another value")
	var conflict *inbox.ConflictError
	if errs := handle(t, h, ms[1:]); !errors.As(errs[0], &conflict) || middleware.Classify(errs[0]) != middleware.Fatal {
		t.Errorf("another value under the same ID = %v, want a conflict, fatal", errs[0])
	}
	ms[1].Digest = []byte("x")
	if errs := handle(t, h, ms[1:]); !errors.As(errs[0], &conflict) {
		t.Errorf("another digest under the same ID = %v, want a conflict", errs[0])
	}
}

func TestTx(t *testing.T) {
	boom := errors.New("boom")
	db, insert := effects(t, map[string]error{"b": boom, "c": errors.New("panic"), "d": middleware.Skip("no")})
	h := middleware.Tx(db, insert)
	errs := handle(t, h, messages(t, "a", "b", "c", "d"))
	var pe *middleware.PanicError
	if errs[0] != nil || errs[1] != boom || !errors.As(errs[2], &pe) || middleware.Classify(errs[3]) != middleware.Decided {
		t.Errorf("errors = %v", errs)
	}
	handle(t, h, messages(t, "a")) // nothing stops a second delivery
	wantEffects(t, db, map[string]int{"a": 2, "d": 1})

	ctx, cancel := context.WithCancel(t.Context())
	late := middleware.Tx(db, func(ctx context.Context, tx *sqlx.Tx, r *kgo.Record) error {
		defer cancel() // after the handler's last statement
		return insert(ctx, tx, r)
	})
	if errs := late.Handle(ctx, messages(t, "e")); !errors.Is(errs[0], context.Canceled) {
		t.Errorf("context over before the commit: %v, want %v", errs[0], context.Canceled)
	}
	wantEffects(t, db, map[string]int{"a": 2, "d": 1})
}
