package inbox

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
)

// Each race: a rival holds its claim in an open transaction, ours is seen to wait for it,
// the rival ends, and ours has to know what that means.
func TestRace(t *testing.T) {
	msg := func(id, digest, resource string, token int64) Message {
		m := Message{ID: id, Digest: []byte(digest)}
		if resource != "" {
			m.Fences = []Fence{{resource, token}}
		}
		return m
	}
	tests := []struct {
		name     string
		before   []Message // decided before the race
		rival    Message
		rivalErr error
		ours     []Message
		want     []Outcome
	}{
		{"same ID, other resource, rival commits", nil, msg("a", "1", "x", 5), nil, []Message{msg("a", "1", "y", 5), msg("b", "1", "z", 5)}, []Outcome{Duplicate, Applied}},
		{"same ID, no resource, rival commits", nil, msg("a", "1", "", 0), nil, []Message{msg("a", "1", "", 0), msg("b", "1", "", 0)}, []Outcome{Duplicate, Applied}},
		{"same ID, other digest, rival commits", nil, msg("a", "1", "x", 5), nil, []Message{msg("a", "2", "y", 5), msg("b", "1", "z", 5)}, []Outcome{Conflict, Applied}},
		{"same ID, no digest, rival commits", nil, msg("a", "1", "x", 5), nil, []Message{msg("a", "", "y", 5)}, []Outcome{Duplicate}},
		{"same ID, rival rolls back", nil, msg("a", "1", "x", 5), errBoom, []Message{msg("a", "2", "y", 5), msg("b", "1", "z", 5)}, []Outcome{Applied, Applied}},
		{"same resource, rival newer, commits", nil, msg("a", "1", "x", 7), nil, []Message{msg("b", "1", "x", 5), msg("c", "1", "y", 5)}, []Outcome{Stale, Applied}},
		{"same resource, rival newer, rolls back", nil, msg("a", "1", "x", 7), errBoom, []Message{msg("b", "1", "x", 5)}, []Outcome{Applied}},
		{"same resource, rival older, commits", nil, msg("a", "1", "x", 5), nil, []Message{msg("b", "1", "x", 7)}, []Outcome{Applied}},
		{"same resource and ID, rival older, commits", nil, msg("a", "1", "x", 5), nil, []Message{msg("a", "1", "x", 7)}, []Outcome{Duplicate}},
		{"known resource, rival newer, same ID, commits", []Message{msg("z", "", "x", 1)}, msg("a", "1", "x", 9), nil, []Message{msg("a", "1", "x", 5)}, []Outcome{Duplicate}},
		{"known resource, rival newer, other ID, commits", []Message{msg("z", "", "x", 1)}, msg("a", "1", "x", 9), nil, []Message{msg("b", "1", "x", 5)}, []Outcome{Stale}},
		{"one of several resources, rival newer, commits", nil, msg("a", "1", "y", 9), nil, []Message{{ID: "b", Fences: []Fence{{"x", 5}, {"y", 5}}}}, []Outcome{Stale}},
		{"one of several resources, rival newer, rolls back", nil, msg("a", "1", "y", 9), errBoom, []Message{{ID: "b", Fences: []Fence{{"x", 5}, {"y", 5}}}}, []Outcome{Applied}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			drivers(t, func(t *testing.T, db *sqlx.DB) {
				b := newBox(t, db, Config{LockTimeout: time.Minute})
				for _, m := range tt.before {
					wantOutcome(t, b.Apply(t.Context(), m, effect("z")), Applied)
				}
				r := claims(t, b, tt.rival)
				got := race(t, db, r, tt.rivalErr, func() []Result {
					return b.ApplyBatch(t.Context(), tt.ours, func(ctx context.Context, tx *sqlx.Tx, i int) error {
						return effect("ours "+tt.ours[i].ID)(ctx, tx)
					})
				})
				wantOutcomes(t, got, tt.want...)
				var want []string
				for i, m := range tt.ours {
					if tt.want[i] == Applied {
						want = append(want, "ours "+m.ID)
					}
				}
				if tt.rivalErr == nil {
					want = append(want, "rival")
				}
				if tt.before != nil {
					want = append(want, "z")
				}
				wantEffects(t, db, want...)
			})
		})
	}
}

// A purge deletes the old row while the claim waits for that deletion: then the message
// is new again.
func TestRace_PurgeDuringTheWait(t *testing.T) {
	db := newDB(t)
	b := newBox(t, db, Config{LockTimeout: time.Minute})
	m := Message{ID: "a"}
	wantOutcome(t, b.Apply(t.Context(), m, effect("first")), Applied)
	purge := db.MustBegin()
	purge.MustExec("DELETE FROM inbox")
	done := make(chan Result, 1)
	go func() { done <- b.Apply(context.Background(), m, effect("second")) }()
	awaitBlocked(t, db, 1)
	must(t, purge.Commit())
	wantOutcome(t, <-done, Applied)
	wantEffects(t, db, "first", "second")
}

// A purge deletes the old row after the claim has met it and before look reads it.
func TestRace_PurgeBetweenClaimAndLook(t *testing.T) {
	drivers(t, func(t *testing.T, db *sqlx.DB) {
		b := newBox(t, db, Config{})
		m := Message{ID: "a", Fences: []Fence{{"x", 1}}}
		wantOutcome(t, b.Apply(t.Context(), m, effect("a")), Applied)
		scope, err := b.scopeID(t.Context())
		must(t, err)
		e, err := b.newEntry(0, &m)
		must(t, err)
		tx, err := b.begin(t.Context())
		must(t, err)
		defer tx.rollback()

		ords, err := queryInts(t.Context(), tx.tx, b.sql.claim, b.claimArgs(scope, []*entry{e})...)
		must(t, err)
		if len(ords) != 1 || ords[0] != 1 {
			t.Fatalf("positions that are not fresh = %v, want 1", ords)
		}
		db.MustExec("DELETE FROM inbox")
		must(t, b.look(t.Context(), tx, []*entry{e}))
		wantOutcome(t, e.result, Again)
		if !uncharged(e.result.Err) {
			t.Error("it is charged")
		}
	})
}

// The claim of a stale message locks the fence all the same, so what it was told cannot
// change before its transaction ends.
func TestRace_StaleClaimLocksTheFence(t *testing.T) {
	db := newDB(t)
	b := newBox(t, db, Config{LockTimeout: time.Minute})
	wantOutcome(t, b.Apply(t.Context(), Message{ID: "z", Fences: []Fence{{"x", 9}}}, effect("z")), Applied)
	scope, err := b.scopeID(t.Context())
	must(t, err)
	e, err := b.newEntry(0, &Message{ID: "a", Fences: []Fence{{"x", 5}}})
	must(t, err)
	tx, err := b.begin(t.Context())
	must(t, err)
	defer tx.rollback()
	fresh, err := b.claim(t.Context(), tx, scope, []*entry{e})
	must(t, err)
	if len(fresh) != 0 {
		t.Fatal("a stale message is fresh")
	}
	wantOutcome(t, e.result, Stale)

	done := make(chan Result, 1)
	go func() {
		done <- b.Apply(context.Background(), Message{ID: "b", Fences: []Fence{{"x", 10}}}, effect("b"))
	}()
	awaitBlocked(t, db, 1)
	must(t, tx.rollback())
	wantOutcome(t, <-done, Applied)
}

func TestRace_Busy(t *testing.T) {
	drivers(t, func(t *testing.T, db *sqlx.DB) {
		const timeout = 100 * time.Millisecond
		b := newBox(t, db, Config{LockTimeout: timeout})
		ms := messages(64) // enough for another plan than that of a few
		// The fence of m01 must be in the table, or nobody can see that it is held.
		wantOutcome(t, b.Apply(t.Context(), Message{ID: "z", Fences: ms[1].Fences}, effect("z")), Applied)
		r := claims(t, b, Message{ID: "other", Fences: ms[1].Fences})

		run := func(ctx context.Context, tx *sqlx.Tx, i int) error { return effect(ms[i].ID)(ctx, tx) }
		start := time.Now()
		got := b.ApplyBatch(t.Context(), ms, run)
		for i, r := range got {
			if want := map[bool]Outcome{true: Busy, false: Applied}[i == 1]; r.Outcome != want {
				t.Errorf("outcome of %d = %v (%v), want %v", i, r.Outcome, r.Err, want)
			}
		}
		if waited := time.Since(start); waited < timeout {
			t.Errorf("busy after %v, before the lock timeout", waited)
		}
		e := as[*BusyError](t, got[1].Err)
		if e.Resource != "order:m01" || e.RetryIn() != timeout || !uncharged(e) {
			t.Errorf("error = %+v, want order:m01, %v, uncharged", e, timeout)
		}
		r.ends(t, nil)
		wantOutcomes(t, b.ApplyBatch(t.Context(), ms[:3], run), Duplicate, Applied, Duplicate)
		wantEffects(t, db, append(ids(ms), "rival", "z")...)
	})
}

// The planner may turn the claim as it likes: the lock timeout is in force before the
// first lock, and the locks come in their order.
func TestRace_BusyUnderAnyPlan(t *testing.T) {
	for _, params := range [][]string{
		{"enable_nestloop=off"},
		{"enable_hashjoin=off", "enable_mergejoin=off"},
		{"enable_hashjoin=off", "enable_nestloop=off"},
		{"enable_sort=off", "enable_material=off", "enable_hashagg=off"},
		{"plan_cache_mode=force_generic_plan"},
	} {
		for _, n := range []int{1, 3, 64} {
			for _, fenced := range []bool{true, false} {
				t.Run(fmt.Sprint(params, n, fenced), func(t *testing.T) {
					// What is off costs so much that the server would compile the plan.
					db := newDB(t, append(params, "jit=off")...)
					b := newBox(t, db, Config{LockTimeout: 20 * time.Millisecond})
					ms := messages(n)
					if !fenced {
						for i := range ms {
							ms[i].Fences = nil
						}
					}
					s := newScript(t, ms)
					r := claims(t, b, ms[n/2])
					for i, res := range b.ApplyBatch(t.Context(), ms, s.run) {
						if res.Outcome != Busy { // new rows cannot be seen, so all of them
							t.Errorf("outcome of %d = %v (%v), want busy", i, res.Outcome, res.Err)
						}
					}
					r.ends(t, errBoom)
					s.apply(b, db, nil)
				})
			}
		}
	}
}

// A held ID cannot be seen by others before it is committed: all that were claimed with
// it are busy, and none is a duplicate.
func TestRace_BusyByID(t *testing.T) {
	db := newDB(t)
	b := newBox(t, db, Config{LockTimeout: 50 * time.Millisecond})
	r := claims(t, b, Message{ID: "a", Fences: []Fence{{"x", 1}}})
	batch := func() []Result {
		ms := []Message{{ID: "a", Fences: []Fence{{"y", 1}}}, {ID: "b"}}
		return b.ApplyBatch(t.Context(), ms, func(ctx context.Context, tx *sqlx.Tx, i int) error { return effect("ours")(ctx, tx) })
	}
	wantOutcomes(t, batch(), Busy, Busy)
	wantOutcome(t, b.Apply(t.Context(), Message{ID: "a"}, effect("ours")), Busy)
	r.ends(t, errBoom)
	wantOutcomes(t, batch(), Applied, Applied)
}

// The lock timeout stays in force for the handler, whose message is not to blame.
func TestRace_HandlerWaitsForLock(t *testing.T) {
	db := newDB(t)
	db.MustExec("CREATE TABLE stock (id int PRIMARY KEY, n int); INSERT INTO stock VALUES (1, 5)")
	b := newBox(t, db, Config{LockTimeout: 50 * time.Millisecond})
	other := db.MustBegin()
	other.MustExec("UPDATE stock SET n = 6")
	ms := messages(3)
	take := func(ctx context.Context, tx *sqlx.Tx, i int) error {
		if i == 1 {
			if _, err := tx.ExecContext(ctx, "UPDATE stock SET n = n - 1"); err != nil {
				return err
			}
		}
		return effect(ms[i].ID)(ctx, tx)
	}
	got := b.ApplyBatch(t.Context(), ms, take)
	wantOutcomes(t, got, Applied, Again, Applied)
	if !uncharged(got[1].Err) || state(got[1].Err) != "55P03" {
		t.Errorf("error = %v, want 55P03, uncharged", got[1].Err)
	}
	wantOutcomes(t, b.ApplyBatch(t.Context(), ms[1:2], func(ctx context.Context, tx *sqlx.Tx, _ int) error { return take(ctx, tx, 1) }), Again)
	must(t, other.Commit())
	wantOutcomes(t, b.ApplyBatch(t.Context(), ms, take), Duplicate, Applied, Duplicate)
}

// The same message from many sides at once is applied once.
func TestRace_ManyAtOnce(t *testing.T) {
	db := newDB(t)
	const callers = 10
	outcomes := make([]Result, callers)
	var wg sync.WaitGroup
	for i := range callers {
		b := newBox(t, db, Config{LockTimeout: time.Minute}) // each looks up the scope, too
		wg.Go(func() { outcomes[i] = b.Apply(context.Background(), Message{ID: "a"}, effect("a")) })
	}
	wg.Wait()
	count := map[Outcome]int{}
	for _, r := range outcomes {
		count[r.Outcome]++
	}
	if count[Applied] != 1 || count[Duplicate] != callers-1 {
		t.Errorf("outcomes = %v, want 1 applied and %d duplicates", count, callers-1)
	}
	wantEffects(t, db, "a")
	var scopes int
	must(t, db.Get(&scopes, "SELECT count(*) FROM inbox_scope"))
	if scopes != 1 {
		t.Errorf("scopes = %d, want 1", scopes)
	}
}

// Two transactions that wait for each other: the server ends one, and it is nobody's
// fault.
func TestRace_DeadlockInHandlers(t *testing.T) {
	db := newDB(t)
	db.MustExec("CREATE TABLE stock (id int PRIMARY KEY, n int); INSERT INTO stock VALUES (1, 0), (2, 0)")
	b := newBox(t, db, Config{LockTimeout: time.Minute})
	var both sync.WaitGroup
	both.Add(2)
	side := func(name string, first, second int) []Result {
		ms := []Message{{ID: name + "0"}, {ID: name + "1"}}
		return b.ApplyBatch(context.Background(), ms, func(ctx context.Context, tx *sqlx.Tx, i int) error {
			row := second
			if i == 0 {
				row = first
			} else {
				both.Done() // each holds its first row now
				both.Wait()
			}
			if _, err := tx.ExecContext(ctx, "UPDATE stock SET n = n + 1 WHERE id = $1", row); err != nil {
				return err
			}
			return effect(ms[i].ID)(ctx, tx)
		})
	}
	results := make(chan []Result, 2)
	go func() { results <- side("a", 1, 2) }()
	go func() { results <- side("b", 2, 1) }()
	applied, again := 0, 0
	for range 2 {
		for _, r := range <-results {
			switch {
			case r.Outcome == Applied:
				applied++
			case r.Outcome == Again && state(r.Err) == "40P01" && uncharged(r.Err):
				again++
			default:
				t.Errorf("outcome = %v (%v)", r.Outcome, r.Err)
			}
		}
	}
	if applied != 2 || again != 2 {
		t.Errorf("%d applied and %d again, want 2 and 2", applied, again)
	}
	var n int
	must(t, db.Get(&n, "SELECT sum(n) FROM stock"))
	if n != 2 || len(effects(t, db)) != 2 {
		t.Errorf("%d updates and %d effects are committed, want 2", n, len(effects(t, db)))
	}

	// For a while transactions are half as long.
	ms := messages(MaxBatch)
	xids := map[string]bool{}
	then := b.ApplyBatch(t.Context(), ms, func(ctx context.Context, tx *sqlx.Tx, _ int) error {
		var xid string
		err := tx.GetContext(ctx, &xid, "SELECT txid_current()::text")
		xids[xid] = true
		return err
	})
	for i, r := range then {
		if r.Outcome != Applied {
			t.Errorf("then outcome of %d = %v (%v), want applied", i, r.Outcome, r.Err)
		}
	}
	if len(xids) != 2 {
		t.Errorf("%d messages took %d transactions after a deadlock, want 2", len(ms), len(xids))
	}
}
