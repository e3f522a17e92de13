package inbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
)

// A script is a handler whose messages misbehave as told. It counts the calls.
type script struct {
	t     *testing.T
	ms    []Message
	bad   map[int]func(ctx context.Context, tx *sqlx.Tx) error // runs after the effect is written
	calls []int
}

func newScript(t *testing.T, ms []Message) *script {
	return &script{t, ms, map[int]func(context.Context, *sqlx.Tx) error{}, make([]int, len(ms))}
}

func (s *script) run(ctx context.Context, tx *sqlx.Tx, i int) error {
	s.calls[i]++
	if err := effect(s.ms[i].ID)(ctx, tx); err != nil {
		return err
	}
	if f := s.bad[i]; f != nil {
		return f(ctx, tx)
	}
	return nil
}

func fails(context.Context, *sqlx.Tx) error  { return errBoom }
func skips(context.Context, *sqlx.Tx) error  { return skip{} }
func panics(context.Context, *sqlx.Tx) error { panic("boom") }

func breaks(ctx context.Context, tx *sqlx.Tx) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO effect (id, n) VALUES ('broken', -1)")
	return err
}

func hides(ctx context.Context, tx *sqlx.Tx) error {
	_ = breaks(ctx, tx)
	return nil
}

// apply applies all messages and checks outcomes, effects and rows; want holds those that
// are not Applied.
func (s *script) apply(b *Inbox, db *sqlx.DB, want map[int]Outcome) []Result {
	s.t.Helper()
	got := b.ApplyBatch(s.t.Context(), s.ms, s.run)
	var without []int
	for i, r := range got {
		w, ok := want[i]
		if !ok {
			w = Applied
		}
		if r.Outcome != w {
			s.t.Errorf("outcome of %s = %v (%v), want %v", s.ms[i].ID, r.Outcome, r.Err, w)
		}
		if w != Applied && w != Skipped {
			without = append(without, i)
		}
	}
	wantEffects(s.t, db, ids(s.ms, without...)...)
	wantRows(s.t, db, len(s.ms)-len(without))
	return got
}

func TestApplyBatch_OneBadIn64(t *testing.T) {
	for name, bad := range map[string]func(context.Context, *sqlx.Tx) error{"error": fails, "SQL error": breaks, "panic": panics, "hidden SQL error": hides} {
		for _, at := range []int{0, 5, 7, 8, 63} { // first, inside, last of a stride, first of one, last
			t.Run(fmt.Sprintf("%s at %d", name, at), func(t *testing.T) {
				db := newDB(t)
				s := newScript(t, messages(64))
				s.bad[at] = bad
				got := s.apply(newBox(t, db, Config{}), db, map[int]Outcome{at: Failed})
				if uncharged(got[at].Err) {
					t.Errorf("error of the bad one = %v, must be charged", got[at].Err)
				}
				if hidden := errors.Is(got[at].Err, ErrSwallowed); hidden != (name == "hidden SQL error") {
					t.Errorf("error of the bad one = %v", got[at].Err)
				}
				for i, n := range s.calls {
					// Twice for its stride, once more where nobody said who it was.
					if most := map[bool]int{true: 3, false: 1}[i/8 == at/8]; n < 1 || n > most {
						t.Errorf("handler of %d was called %d times, want at most %d", i, n, most)
					}
				}
			})
		}
	}
}

// A handler that runs in the transaction that its neighbour has broken gets 25P02, which
// is not its own.
func TestApplyBatch_BlamesTheOneThatHid(t *testing.T) {
	db := newDB(t)
	s := newScript(t, messages(6))
	s.bad[2] = hides
	got := s.apply(newBox(t, db, Config{}), db, map[int]Outcome{2: Failed})
	if !errors.Is(got[2].Err, ErrSwallowed) {
		t.Errorf("error = %v, want ErrSwallowed", got[2].Err)
	}
	if s.calls[3] < 2 {
		t.Error("the next handler did not meet the broken transaction: the test shows nothing")
	}
}

func TestApplyBatch_EveryMisbehaviourAtOnce(t *testing.T) {
	for _, stride := range []int{1, 2, 8, 64} {
		t.Run(fmt.Sprint("stride ", stride), func(t *testing.T) {
			db := newDB(t)
			s := newScript(t, messages(64))
			want := map[int]Outcome{}
			for i, bad := range []func(context.Context, *sqlx.Tx) error{fails, breaks, hides, panics, skips, hides, fails} {
				s.bad[3*i+i*i] = bad
				want[3*i+i*i] = Failed
			}
			want[3*4+4*4] = Skipped
			s.apply(newBox(t, db, Config{Stride: stride}), db, want)
			s.bad = nil // all mended: the rest is applied now
			for i, r := range s.ms {
				if o, ok := want[i]; ok && o == Failed {
					wantOutcome(t, newBox(t, db, Config{}).Apply(t.Context(), r, effect(r.ID)), Applied)
				}
			}
			wantEffects(t, db, ids(s.ms)...)
		})
	}
}

func TestApplyBatch_AllFail(t *testing.T) {
	db := newDB(t)
	s := newScript(t, messages(64))
	want := map[int]Outcome{}
	for i := range s.ms {
		s.bad[i], want[i] = fails, Failed
	}
	s.apply(newBox(t, db, Config{}), db, want)
}

// A message with its failure is undone as a whole: also what it wrote before.
func TestApplyBatch_HandlersOwnSavepoint(t *testing.T) {
	db := newDB(t)
	s := newScript(t, messages(3))
	s.bad[1] = func(ctx context.Context, tx *sqlx.Tx) error {
		for _, q := range []string{"SAVEPOINT mine", "INSERT INTO effect (id, n) VALUES ('broken', -1)", "ROLLBACK TO SAVEPOINT mine"} {
			_, _ = tx.ExecContext(ctx, q) // the second fails, and is dealt with
		}
		return nil
	}
	s.apply(newBox(t, db, Config{}), db, nil)
}

func TestApplyBatch_LargerThanATransaction(t *testing.T) {
	db := newDB(t)
	ms := messages(150)
	for i := range ms {
		ms[i].ID = fmt.Sprintf("m%03d", i)
	}
	s := newScript(t, ms)
	s.bad[140] = fails
	s.apply(newBox(t, db, Config{}), db, map[int]Outcome{140: Failed})
	var transactions int
	must(t, db.Get(&transactions, "SELECT count(DISTINCT xmin::text) FROM inbox_fence"))
	if transactions != 3 {
		t.Errorf("%d transactions, want 3", transactions)
	}
}

func TestApplyBatch_Empty(t *testing.T) {
	b := newBox(t, openURL(t, "postgres://x@127.0.0.1:1/x"), Config{})
	if got := b.ApplyBatch(t.Context(), nil, nil); len(got) != 0 {
		t.Errorf("results = %v, want none", got)
	}
}

// Twins depend on the first one's COMMIT, so they are neither duplicates nor run.
func TestApplyBatch_Twins(t *testing.T) {
	db := newDB(t)
	b := newBox(t, db, Config{})
	ms := []Message{{ID: "a"}, {ID: "b"}, {ID: "a", Digest: []byte("other")}, {ID: "a", Fences: []Fence{{"x", 1}, {"y", 1}}}}
	s := newScript(t, ms)
	s.bad[0] = fails
	got := b.ApplyBatch(t.Context(), ms, s.run)
	wantOutcomes(t, got, Failed, Applied, Again, Again)
	if !uncharged(got[2].Err) || s.calls[2]+s.calls[3] != 0 {
		t.Errorf("twin: %v, %d calls, want uncharged and none", got[2].Err, s.calls[2])
	}
	wantEffects(t, db, "b")
	s.bad = nil
	wantOutcomes(t, b.ApplyBatch(t.Context(), ms[:3], s.run), Applied, Duplicate, Again)
	wantOutcomes(t, b.ApplyBatch(t.Context(), ms[2:], s.run), Duplicate, Again)
}

// A twin of a stale message is not told to be stale: its own fence may be good.
func TestApplyBatch_TwinOfStale(t *testing.T) {
	db := newDB(t)
	b := newBox(t, db, Config{})
	wantOutcome(t, b.Apply(t.Context(), Message{ID: "z", Fences: []Fence{{"x", 9}}}, effect("z")), Applied)
	ms := []Message{{ID: "a", Fences: []Fence{{"x", 5}}}, {ID: "a", Fences: []Fence{{"y", 5}}}}
	wantOutcomes(t, b.ApplyBatch(t.Context(), ms, newScript(t, ms).run), Stale, Again)
	wantOutcomes(t, b.ApplyBatch(t.Context(), ms[1:], newScript(t, ms[1:]).run), Applied)
}

func TestApplyBatch_SharedResource(t *testing.T) {
	db := newDB(t)
	b := newBox(t, db, Config{})
	ms := []Message{{ID: "a", Fences: []Fence{{"x", 5}}}, {ID: "b", Fences: []Fence{{"x", 5}}}, {ID: "c", Fences: []Fence{{"x", 4}}}, {ID: "d", Fences: []Fence{{"x", 6}}}}
	s := newScript(t, ms)
	wantOutcomes(t, b.ApplyBatch(t.Context(), ms, s.run), Applied, Applied, Again, Again)
	wantOutcomes(t, b.ApplyBatch(t.Context(), ms, s.run), Duplicate, Duplicate, Again, Again)
	wantOutcomes(t, b.ApplyBatch(t.Context(), ms[2:3], s.run), Stale)
	wantEffects(t, db, "a", "b")
}

// Everything that can be known at once, in one batch, in its place.
func TestApplyBatch_MixedOutcomes(t *testing.T) {
	drivers(t, func(t *testing.T, db *sqlx.DB) {
		b := newBox(t, db, Config{})
		before := []Message{{ID: "old", Digest: []byte("1")}, {ID: "z", Fences: []Fence{{"x", 9}}}}
		wantOutcomes(t, b.ApplyBatch(t.Context(), before, newScript(t, before).run), Applied, Applied)
		ms := []Message{
			{ID: ""},
			{ID: "several", Fences: []Fence{{"p", 1}, {"q", 1}}},
			{ID: "old", Digest: []byte("1")},
			{ID: "new"},
			{ID: "stale", Fences: []Fence{{"x", 8}}},
			{ID: "bad"},
			{ID: "new"},
			{ID: "skip"},
			{ID: "fenced", Fences: []Fence{{"y", 1}}},
			{ID: "one of several is stale", Fences: []Fence{{"r", 1}, {"x", 8}}},
		}
		s := newScript(t, ms)
		s.bad[5], s.bad[7] = breaks, skips
		got := b.ApplyBatch(t.Context(), ms, s.run)
		wantOutcomes(t, got, Failed, Applied, Duplicate, Applied, Stale, Failed, Again, Skipped, Applied, Stale)
		for i, r := range got {
			if (r.Err == nil) != (r.Outcome == Applied || r.Outcome == Duplicate) {
				t.Errorf("outcome %v of %d has error %v", r.Outcome, i, r.Err)
			}
		}
		wantEffects(t, db, "fenced", "new", "old", "several", "skip", "z")
		other := append(slices.Clone(ms[:2:2]), Message{ID: "old", Digest: []byte("2")})
		wantOutcomes(t, b.ApplyBatch(t.Context(), other, s.run), Failed, Duplicate, Conflict)
	})
}

// The server refuses the COMMIT of a batch and does not say because of whom.
func TestApplyBatch_RefusedCommitIsHalved(t *testing.T) {
	db := newDB(t)
	db.MustExec("ALTER TABLE effect ADD CONSTRAINT one UNIQUE (id) DEFERRABLE INITIALLY DEFERRED")
	db.MustExec("INSERT INTO effect (id) VALUES ('taken')")
	s := newScript(t, messages(16))
	s.bad[11] = func(ctx context.Context, tx *sqlx.Tx) error { return effect("taken")(ctx, tx) }
	s.bad[3] = fails
	got := newBox(t, db, Config{}).ApplyBatch(t.Context(), s.ms, s.run)
	for i, r := range got {
		want := Applied
		if i == 3 || i == 11 {
			want = Failed
		}
		if r.Outcome != want {
			t.Errorf("outcome of %d = %v (%v), want %v", i, r.Outcome, r.Err, want)
		}
	}
	if state(got[11].Err) != "23505" {
		t.Errorf("error = %v, want SQLSTATE 23505", got[11].Err)
	}
	wantEffects(t, db, append(ids(s.ms, 3, 11), "taken")...)
}

// A collision with another transaction is nobody's fault, wherever it is reported.
func TestApplyBatch_SerializationFailure(t *testing.T) {
	const raise = `RAISE EXCEPTION 'collision' USING ERRCODE = '40001'`
	t.Run("in a handler", func(t *testing.T) {
		db := newDB(t)
		b := newBox(t, db, Config{})
		s := newScript(t, messages(12))
		s.bad[10] = func(ctx context.Context, tx *sqlx.Tx) error {
			_, err := tx.ExecContext(ctx, "DO $$ BEGIN "+raise+"; END $$")
			return err
		}
		s.allAgain(b)
		s.ms = s.ms[10:11]
		s.bad[0] = s.bad[10]
		s.allAgain(b)
		wantRows(t, db, 0)
	})
	t.Run("at COMMIT", func(t *testing.T) {
		db := newDB(t)
		b := newBox(t, db, Config{})
		db.MustExec("CREATE FUNCTION collide() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN " + raise + "; END $$")
		db.MustExec("CREATE CONSTRAINT TRIGGER collide AFTER INSERT ON effect DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION collide()")
		newScript(t, messages(12)).allAgain(b)
		newScript(t, messages(1)).allAgain(b)
		wantRows(t, db, 0)
	})
}

func (s *script) allAgain(b *Inbox) {
	s.t.Helper()
	for i, r := range b.ApplyBatch(s.t.Context(), s.ms, s.run) {
		if r.Outcome != Again || state(r.Err) != "40001" || !uncharged(r.Err) {
			s.t.Errorf("outcome of %d = %v (%v), want again, 40001, uncharged", i, r.Outcome, r.Err)
		}
	}
}

// Whoever ends the transaction of all is told so, and the others lose nothing if it was
// a rollback.
func TestApplyBatch_HandlerRollsBack(t *testing.T) {
	for name, end := range map[string]func(ctx context.Context, tx *sqlx.Tx) error{
		"method": func(_ context.Context, tx *sqlx.Tx) error { return tx.Rollback() },
		"SQL":    func(ctx context.Context, tx *sqlx.Tx) error { _, err := tx.ExecContext(ctx, "ROLLBACK"); return err },
	} {
		t.Run(name, func(t *testing.T) {
			db := newDB(t)
			s := newScript(t, messages(20))
			s.bad[15] = end // the last of its stride
			got := newBox(t, db, Config{}).ApplyBatch(t.Context(), s.ms, s.run)
			for i, r := range got {
				want := Applied
				if i/8 == 1 {
					want = Failed // any of them may have been it
				}
				if r.Outcome != want || want == Failed && !errors.Is(r.Err, ErrEnded) {
					t.Errorf("outcome of %d = %v (%v), want %v", i, r.Outcome, r.Err, want)
				}
			}
			wantEffects(t, db, ids(s.ms, 8, 9, 10, 11, 12, 13, 14, 15)...)
		})
	}
}

// Each released savepoint that wrote has a transaction ID of its own, of which the server
// keeps 64 in shared memory; with more, every reader slows down.
func TestApplyBatch_Savepoints(t *testing.T) {
	for _, tt := range []struct {
		stride, messages, want int
		bad                    func(context.Context, *sqlx.Tx) error
	}{
		{8, 64, 8, nil},
		{1, 64, 64, nil},
		{64, 64, 1, nil},
		{8, 3, 1, nil},
		{8, 64, 8 + 1, fails},   // 0 to 4 and 6 to 7, in place of 0 to 7
		{8, 64, 8 + 6, hides},   // all but 5 apart
		{64, 64, 64 - 1, hides}, // the worst case
	} {
		t.Run(fmt.Sprintf("stride %d of %d, bad %v", tt.stride, tt.messages, tt.bad != nil), func(t *testing.T) {
			db := newDB(t)
			s := newScript(t, messages(tt.messages))
			want := map[int]Outcome{}
			if tt.bad != nil {
				s.bad[5], want[5] = tt.bad, Failed
			}
			s.apply(newBox(t, db, Config{Stride: tt.stride}), db, want)
			var got int
			must(t, db.Get(&got, "SELECT count(DISTINCT xmin::text) FROM effect"))
			if got != tt.want {
				t.Errorf("%d savepoints, want %d", got, tt.want)
			}
		})
	}
}

func TestPace(t *testing.T) {
	var p pace
	if got := p.stride(8); got != 8 {
		t.Errorf("stride at first = %d, want 8", got)
	}
	for range 20 {
		p.note(6, 64) // 9 %
	}
	if got := p.stride(8); got != 1 {
		t.Errorf("stride with 9 %% failing = %d, want 1", got)
	}
	for range 20 {
		p.note(1, 64)
	}
	if got := p.stride(8); got != 8 {
		t.Errorf("stride with 1.5 %% failing = %d, want 8", got)
	}
	p.note(1, 2) // a small batch does not turn it
	if got := p.stride(8); got != 8 {
		t.Errorf("stride after one bad small batch = %d, want 8", got)
	}
}

// The pace is that of the batches: after some with many failures, each message runs
// between savepoints of its own, so a failing one costs nobody a second run.
func TestApplyBatch_PaceFollowsFailures(t *testing.T) {
	db := newDB(t)
	b := newBox(t, db, Config{})
	repeated := func(round int) (n int) {
		ms := messages(64)
		for i := range ms {
			ms[i].ID = fmt.Sprintf("r%d-%d", round, i)
		}
		s := newScript(t, ms)
		for i := 6; i < 64; i += 8 {
			s.bad[i] = fails
		}
		b.ApplyBatch(t.Context(), ms, s.run)
		for _, c := range s.calls {
			n += c - 1
		}
		return n
	}
	if n := repeated(0); n == 0 {
		t.Fatal("no handler was run twice in the first batch: the test shows nothing")
	}
	for round := 1; round < 5; round++ {
		repeated(round)
	}
	if n := repeated(5); n != 0 {
		t.Errorf("%d handlers were run twice in the sixth batch, want 0", n)
	}
}

func TestApplyBatch_ContextEndsInHandler(t *testing.T) {
	cause := errors.New("lease lost")
	for name, answer := range map[string]func(ctx context.Context, tx *sqlx.Tx) error{
		"it returns the error of its statement": func(ctx context.Context, tx *sqlx.Tx) error { return effect("x")(ctx, tx) },
		"it waits in the server":                func(ctx context.Context, tx *sqlx.Tx) error { return sleep(ctx, tx) },
		"it hides the error":                    func(ctx context.Context, tx *sqlx.Tx) error { _ = effect("x")(ctx, tx); return nil },
		"it does not look":                      func(context.Context, *sqlx.Tx) error { return nil },
		"it fails of its own":                   fails,
	} {
		t.Run(name, func(t *testing.T) {
			db := newDB(t)
			b := newBox(t, db, Config{})
			for _, n := range []int{1, 12} {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				s := newScript(t, messages(n))
				s.bad[n-1] = func(ctx context.Context, tx *sqlx.Tx) error {
					if name == "it waits in the server" {
						stop := time.AfterFunc(20*time.Millisecond, func() { cancel(cause) })
						defer stop.Stop()
					} else {
						cancel(cause)
					}
					return answer(ctx, tx)
				}
				for i, r := range b.ApplyBatch(ctx, s.ms, s.run) {
					if r.Outcome != Again || !errors.Is(r.Err, cause) || !uncharged(r.Err) {
						t.Errorf("outcome of %d of %d = %v (%v), want again, with the cause", i, n, r.Outcome, r.Err)
					}
				}
				wantEffects(t, db)
				wantRows(t, db, 0)
			}
		})
	}
}

func sleep(ctx context.Context, tx *sqlx.Tx) error {
	_, err := tx.ExecContext(ctx, "SELECT pg_sleep(30)")
	return err
}

// A handler's own deadline is its own affair, though it breaks the connection of all.
func TestApplyBatch_OwnDeadlineInHandler(t *testing.T) {
	for name, answer := range map[string]func(ctx context.Context, err error) error{
		"error of the statement": func(_ context.Context, err error) error { return err },
		"error of the context":   func(ctx context.Context, _ error) error { return context.Cause(ctx) },
	} {
		t.Run(name, func(t *testing.T) {
			db := newDB(t)
			s := newScript(t, messages(12))
			s.bad[9] = func(ctx context.Context, tx *sqlx.Tx) error {
				ctx, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
				defer cancel()
				return answer(ctx, sleep(ctx, tx))
			}
			got := s.apply(newBox(t, db, Config{}), db, map[int]Outcome{9: Failed})
			if uncharged(got[9].Err) {
				t.Errorf("error = %v, want that of the handler", got[9].Err)
			}
		})
	}
}

// The context ends while the claim waits for a rival.
func TestApply_ContextEndsInClaim(t *testing.T) {
	db := newDB(t)
	b := newBox(t, db, Config{LockTimeout: time.Minute})
	r := claims(t, b, Message{ID: "a"})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan Result, 1)
	go func() { done <- b.Apply(ctx, Message{ID: "a"}, effect("ours")) }()
	awaitBlocked(t, db, 1)
	cancel()
	res := <-done
	wantOutcome(t, res, Again)
	if !errors.Is(res.Err, context.Canceled) {
		t.Errorf("error = %v, want context.Canceled", res.Err)
	}
	r.ends(t, nil)
	wantEffects(t, db, "rival")
}

// Waiting for a connection of a busy pool ends with the context, too.
func TestApply_ContextEndsInPool(t *testing.T) {
	db := newDB(t)
	b := newBox(t, db, Config{})
	wantOutcome(t, b.Apply(t.Context(), Message{ID: "z"}, effect("z")), Applied)
	db.SetMaxOpenConns(1)
	conn, err := db.Connx(t.Context())
	must(t, err)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	res := b.Apply(ctx, Message{ID: "a"}, effect("a"))
	wantOutcome(t, res, Again)
	if !errors.Is(res.Err, context.DeadlineExceeded) {
		t.Errorf("error = %v, want context.DeadlineExceeded", res.Err)
	}
}
