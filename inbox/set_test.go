package inbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/jmoiron/sqlx"
)

// setScript is a handler of sets that writes one effect per message in one statement,
// and lets some messages misbehave.
type setScript struct {
	ms    []Message
	calls int
	bad   func(ctx context.Context, tx *sqlx.Tx, is []int) []error
}

func (s *setScript) run(ctx context.Context, tx *sqlx.Tx, is []int) []error {
	s.calls++
	var names array
	for _, i := range is {
		names.text(s.ms[i].ID)
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO effect (id) SELECT unnest($1::text[])", names.String()); err != nil {
		return all(is, err)
	}
	if s.bad == nil {
		return nil
	}
	return s.bad(ctx, tx, is)
}

func all(is []int, err error) []error {
	errs := make([]error, len(is))
	for i := range errs {
		errs[i] = err
	}
	return errs
}

func TestApplySet_InOneCall(t *testing.T) {
	drivers(t, func(t *testing.T, db *sqlx.DB) {
		s := &setScript{ms: messages(64)}
		b := newBox(t, db, Config{})
		if r := b.Apply(t.Context(), s.ms[7], effect(s.ms[7].ID)); r.Outcome != Applied {
			t.Fatal(r)
		}
		for i, r := range b.ApplySet(t.Context(), s.ms, s.run) {
			want := Applied
			if i == 7 {
				want = Duplicate
			}
			if r.Outcome != want {
				t.Errorf("outcome of %d = %v (%v), want %v", i, r.Outcome, r.Err, want)
			}
		}
		if s.calls != 1 {
			t.Errorf("%d calls, want 1", s.calls)
		}
		wantEffects(t, db, ids(s.ms)...)
		for _, r := range b.ApplySet(t.Context(), s.ms, s.run) {
			if r.Outcome != Duplicate {
				t.Errorf("second time: %v (%v), want duplicate", r.Outcome, r.Err)
			}
		}
		if s.calls != 1 {
			t.Errorf("%d calls, want none for duplicates", s.calls-1)
		}
	})
}

// One bad message of 64 fails alone, whether the handler says which it was or not.
func TestApplySet_OneBad(t *testing.T) {
	const bad = 37
	for name, tt := range map[string]struct {
		bad   func(ctx context.Context, tx *sqlx.Tx, is []int) []error
		calls int // at most
	}{
		"named": {func(_ context.Context, _ *sqlx.Tx, is []int) []error {
			errs := make([]error, len(is))
			for i := range is {
				if is[i] == bad {
					errs[i] = errBoom
				}
			}
			return errs
		}, 2},
		"not named": {func(_ context.Context, _ *sqlx.Tx, is []int) []error {
			if slices.Contains(is, bad) {
				return all(is, errBoom)
			}
			return nil
		}, 13},
		"panic": {func(_ context.Context, _ *sqlx.Tx, is []int) []error {
			if slices.Contains(is, bad) {
				panic(errBoom)
			}
			return nil
		}, 13},
		"wrong number of errors": {func(_ context.Context, _ *sqlx.Tx, is []int) []error {
			if slices.Contains(is, bad) {
				return make([]error, len(is)+1)
			}
			return nil
		}, 13},
		"SQL error": {func(ctx context.Context, tx *sqlx.Tx, is []int) []error {
			if slices.Contains(is, bad) {
				_, err := tx.ExecContext(ctx, "SELECT 1/0")
				return all(is, err)
			}
			return nil
		}, 13},
		"hidden SQL error": {func(ctx context.Context, tx *sqlx.Tx, is []int) []error {
			if slices.Contains(is, bad) {
				_, _ = tx.ExecContext(ctx, "SELECT 1/0")
			}
			return nil
		}, 13},
	} {
		t.Run(name, func(t *testing.T) {
			db := newDB(t)
			s := &setScript{ms: messages(64), bad: tt.bad}
			for i, r := range newBox(t, db, Config{}).ApplySet(t.Context(), s.ms, s.run) {
				want := Applied
				if i == bad {
					want = Failed
				}
				if r.Outcome != want {
					t.Errorf("outcome of %d = %v (%v), want %v", i, r.Outcome, r.Err, want)
				}
				if i == bad && (uncharged(r.Err) || (name == "hidden SQL error") != errors.Is(r.Err, ErrSwallowed)) {
					t.Errorf("error of the bad one = %v", r.Err)
				}
			}
			if s.calls > tt.calls {
				t.Errorf("%d calls, want at most %d", s.calls, tt.calls)
			}
			wantEffects(t, db, ids(s.ms, bad)...)
			wantRows(t, db, 63)
		})
	}
}

func TestApplySet_Skips(t *testing.T) {
	db := newDB(t)
	s := &setScript{ms: messages(3), bad: func(_ context.Context, _ *sqlx.Tx, is []int) []error {
		return []error{nil, fmt.Errorf("not ours: %w", skip{}), nil}
	}}
	got := newBox(t, db, Config{}).ApplySet(t.Context(), s.ms, s.run)
	wantOutcomes(t, got, Applied, Skipped, Applied)
	wantRows(t, db, 3)
}

// Whoever is cut short by the end of the context is not at fault, and nothing is
// committed, even if the handler did not care.
func TestApplySet_ContextEnds(t *testing.T) {
	db := newDB(t)
	ctx, cancel := context.WithCancel(t.Context())
	s := &setScript{ms: messages(4), bad: func(context.Context, *sqlx.Tx, []int) []error { cancel(); return nil }}
	for i, r := range newBox(t, db, Config{}).ApplySet(ctx, s.ms, s.run) {
		if r.Outcome != Again || !errors.Is(r.Err, context.Canceled) {
			t.Errorf("outcome of %d = %v (%v), want again with the cause", i, r.Outcome, r.Err)
		}
	}
	wantEffects(t, db)
	wantRows(t, db, 0)
}

// A connection that breaks is nobody's fault.
func TestApplySet_ConnectionLost(t *testing.T) {
	db := newDB(t)
	killed := false
	s := &setScript{ms: messages(8)}
	s.bad = func(ctx context.Context, tx *sqlx.Tx, is []int) []error {
		if killed {
			return nil
		}
		killed = true
		var pid int
		must(t, tx.GetContext(ctx, &pid, "SELECT pg_backend_pid()"))
		db.MustExec("SELECT pg_terminate_backend($1, 5000)", pid)
		_, err := tx.ExecContext(ctx, "SELECT 1")
		errs := make([]error, len(is))
		errs[len(is)-1] = err
		return errs
	}
	for i, r := range newBox(t, db, Config{}).ApplySet(t.Context(), s.ms, s.run) {
		if r.Outcome != Applied {
			t.Errorf("outcome of %d = %v (%v), want applied", i, r.Outcome, r.Err)
		}
	}
	if !killed {
		t.Error("the connection was not lost: the test shows nothing")
	}
	wantEffects(t, db, ids(s.ms)...)
}

// A statement in a transaction that a neighbour's statement has broken is no fault of
// its message, whether or not the neighbour says so.
func TestApplySet_BrokenByANeighbour(t *testing.T) {
	for name, bad := range map[string]func(context.Context, *sqlx.Tx) error{"told": breaks, "hidden": hides} {
		t.Run(name, func(t *testing.T) {
			db := newDB(t)
			ms := messages(8)
			rs := newBox(t, db, Config{}).ApplySet(t.Context(), ms, func(ctx context.Context, tx *sqlx.Tx, is []int) []error {
				errs := make([]error, len(is))
				for n, i := range is {
					if errs[n] = effect(ms[i].ID)(ctx, tx); i == 2 {
						errs[n] = bad(ctx, tx)
					}
				}
				return errs
			})
			wantOutcomes(t, rs, Applied, Applied, Failed, Applied, Applied, Applied, Applied, Applied)
			wantEffects(t, db, ids(ms, 2)...)
		})
	}
}
