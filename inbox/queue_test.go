package inbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/onceward/onceward/internal/devstack/devtest"
)

// A queueScript is a handler that queues one effect, and lets some messages misbehave.
type queueScript struct {
	t     *testing.T
	ms    []Message
	bad   map[int]func(q *Queue) error // runs after the effect is queued
	calls []int
}

func newQueueScript(t *testing.T, n int) *queueScript {
	ms := make([]Message, n)
	for i := range ms {
		id := fmt.Sprintf("m%03d", i)
		ms[i] = Message{ID: id, Digest: []byte(id), Fences: []Fence{{"order:" + id, 1}}}
	}
	return &queueScript{t, ms, map[int]func(q *Queue) error{}, make([]int, n)}
}

const effectSQL = "INSERT INTO effect (id) VALUES ($1)"

func (s *queueScript) run(_ context.Context, q *Queue, i int) error {
	s.calls[i]++
	q.ExecRows(1, effectSQL, s.ms[i].ID)
	if f := s.bad[i]; f != nil {
		return f(q)
	}
	q.Exec("UPDATE effect SET n = n + 1 WHERE id = $1 AND n > 1", s.ms[i].ID)
	return nil
}

// quick is run without demands on rows, so that COMMIT may go along.
func (s *queueScript) quick(_ context.Context, q *Queue, i int) error {
	s.calls[i]++
	q.Exec(effectSQL, s.ms[i].ID)
	if f := s.bad[i]; f != nil {
		return f(q)
	}
	return nil
}

func (s *queueScript) apply(b *Inbox, db *sqlx.DB, run queuer, want map[int]Outcome) []Result {
	s.t.Helper()
	got := b.ApplyQueue(s.t.Context(), s.ms, run)
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

var (
	queueFails  = func(*Queue) error { return errBoom }
	queueSkips  = func(*Queue) error { return skip{} }
	queuePanics = func(*Queue) error { panic(errBoom) }
	queueBreaks = func(q *Queue) error { q.Exec("INSERT INTO effect (id, n) VALUES ($1, -1)", "broken"); return nil }
	queueMisses = func(q *Queue) error { q.ExecRows(1, "UPDATE effect SET n = 2 WHERE id = 'nobody'"); return nil }
	queueBadSQL = func(q *Queue) error { q.Exec("INSERT INTO nowhere VALUES ($1)", 1); return nil }
	queueBadArg = func(q *Queue) error {
		q.Exec("INSERT INTO effect (id, n) VALUES ($1, $2)", "broken", "seven")
		return nil
	}
	queueEnds = func(q *Queue) error { q.Exec(" rollback ;"); return nil }
)

func TestApplyQueue_AppliedThenDuplicate(t *testing.T) {
	drivers(t, func(t *testing.T, db *sqlx.DB) {
		b := newBox(t, db, Config{})
		for _, n := range []int{1, 2, 64, 300} {
			s := newQueueScript(t, n)
			for i := range s.ms {
				s.ms[i].ID = fmt.Sprintf("%d-%03d", n, i)
			}
			for _, run := range []queuer{s.run, s.quick} {
				want := Applied
				if s.calls[0] > 0 {
					want = Duplicate
				}
				for i, r := range b.ApplyQueue(t.Context(), s.ms, run) {
					if r.Outcome != want || s.calls[i] != 1 {
						t.Errorf("outcome of %d of %d = %v (%v) after %d calls, want %v after one", i, n, r.Outcome, r.Err, s.calls[i], want)
					}
				}
			}
		}
		if got := effects(t, db); len(got) != 367 {
			t.Errorf("%d effects, want 367", len(got))
		}
	})
}

func TestApplyQueue_OneBad(t *testing.T) {
	for name, bad := range map[string]func(*Queue) error{
		"error": queueFails, "panic": queuePanics, "SQL error": queueBreaks, "too few rows": queueMisses,
		"bad SQL": queueBadSQL, "bad argument": queueBadArg, "ends the transaction": queueEnds,
	} {
		t.Run(name, func(t *testing.T) {
			drivers(t, func(t *testing.T, db *sqlx.DB) {
				b := newBox(t, db, Config{})
				for round, at := range []int{0, 7, 20, 43} { // first, last and inside of a stride, last
					db.MustExec("TRUNCATE effect, inbox, inbox_fence")
					n := []int{1, 44}[min(round, 1)]
					for _, quick := range []bool{false, true} {
						db.MustExec("TRUNCATE effect, inbox, inbox_fence")
						s := newQueueScript(t, n)
						s.bad[at] = bad
						run := s.run
						if quick {
							run = s.quick
						}
						got := s.apply(b, db, run, map[int]Outcome{at: Failed})
						if uncharged(got[at].Err) {
							t.Errorf("error = %v, must be charged", got[at].Err)
						}
					}
				}
			})
		})
	}
}

// Several at once, of each kind, in one batch that is larger than the number of savepoints.
func TestApplyQueue_EveryMisbehaviourAtOnce(t *testing.T) {
	drivers(t, func(t *testing.T, db *sqlx.DB) {
		for _, stride := range []int{1, 3, 8, 64} {
			db.MustExec("TRUNCATE effect, inbox, inbox_fence")
			b := newBox(t, db, Config{Stride: stride})
			s := newQueueScript(t, 256)
			want := map[int]Outcome{}
			for i, bad := range []func(*Queue) error{
				queueFails, queueBreaks, queueMisses, queuePanics, queueSkips, queueBadSQL, queueBadArg, queueBreaks, queueEnds, queueMisses, queueBreaks,
			} {
				at := 23 * i
				s.bad[at], want[at] = bad, Failed
				if i == 4 {
					want[at] = Skipped
				}
			}
			s.bad[255], want[255] = queueBreaks, Failed
			s.bad[254], want[254] = queueMisses, Failed
			s.apply(b, db, s.run, want)
		}
	})
}

func TestApplyQueue_AllFail(t *testing.T) {
	drivers(t, func(t *testing.T, db *sqlx.DB) {
		s := newQueueScript(t, 40)
		want := map[int]Outcome{}
		for i := range s.ms {
			want[i] = Failed
			s.bad[i] = []func(*Queue) error{queueFails, queueBreaks, queueMisses}[i%3]
		}
		s.apply(newBox(t, db, Config{}), db, s.run, want)
	})
}

// A demand on rows is an error that says what was wrong.
func TestApplyQueue_RowsError(t *testing.T) {
	drivers(t, func(t *testing.T, db *sqlx.DB) {
		b := newBox(t, db, Config{})
		for _, n := range []int{1, 3} {
			s := newQueueScript(t, n)
			s.bad[n/2] = queueMisses
			e := as[*RowsError](t, s.apply(b, db, s.run, map[int]Outcome{n / 2: Failed})[n/2].Err)
			if e.Rows != 0 || e.Want != 1 || !strings.Contains(e.Query, "nobody") {
				t.Errorf("error = %+v, want 0 rows in place of 1", e)
			}
			db.MustExec("TRUNCATE effect, inbox, inbox_fence")
		}
		s := newQueueScript(t, 2)
		s.bad[0] = func(q *Queue) error { q.ExecRows(-3, "SELECT 1"); return nil }
		s.apply(b, db, s.run, map[int]Outcome{0: Failed})
	})
}

// With more savepoints than 64 in a transaction, every reader of the server slows down.
func TestApplyQueue_Savepoints(t *testing.T) {
	for _, tt := range []struct {
		stride, messages, want int
		bad                    []int
	}{
		{8, 64, 8, nil},
		{1, 64, 64, nil},
		{8, 256, 32, nil},
		{1, 256, 64, nil},
		{1, 256, 63, []int{0, 100, 255}}, // 253 in strides of four, and the first begins in its first stride
		{8, 64, 8, []int{5, 20, 21}},
	} {
		t.Run(fmt.Sprintf("stride %d of %d, %d bad", tt.stride, tt.messages, len(tt.bad)), func(t *testing.T) {
			db := onPgx(t)
			s := newQueueScript(t, tt.messages)
			want := map[int]Outcome{}
			for _, i := range tt.bad {
				s.bad[i], want[i] = queueMisses, Failed
			}
			s.apply(newBox(t, db, Config{Stride: tt.stride}), db, s.run, want)
			var got int
			must(t, db.Get(&got, "SELECT count(DISTINCT xmin::text) FROM effect"))
			if got > 64 || got != tt.want && tt.bad == nil {
				t.Errorf("%d savepoints, want %d", got, tt.want)
			}
		})
	}
}

// Writes of a connection, until the call returns.
func TestApplyQueue_Flights(t *testing.T) {
	address := devtest.PostgresURL(t)
	db := migrate(t, openURL(t, address))
	p, _ := newProxy(t, address, "COMMIT")
	far := openWith(t, "pgx", p.address(t, address))
	b := newBox(t, far, Config{})
	round := 0
	flights := func(n int, quick bool, bad ...int) int64 {
		round++
		s := newQueueScript(t, n)
		for i := range s.ms {
			s.ms[i].ID = fmt.Sprintf("%d-%d", round, i)
		}
		for _, i := range bad {
			s.bad[i] = queueBreaks
		}
		run := s.run
		if quick {
			run = s.quick
		}
		before := p.flights.Load()
		for i, r := range b.ApplyQueue(t.Context(), s.ms, run) {
			if want := map[bool]Outcome{true: Failed, false: Applied}[slices.Contains(bad, i)]; r.Outcome != want {
				t.Errorf("outcome of %d = %v (%v), want %v", i, r.Outcome, r.Err, want)
			}
		}
		return p.flights.Load() - before
	}
	flights(2, false, 0) // prepares
	flights(1, true)
	for _, tt := range []struct {
		n     int
		quick bool
		bad   []int
		want  int64
	}{
		{1, true, nil, 2},              // BEGIN and claim; effect and COMMIT
		{20, true, nil, 2},             //
		{1, false, nil, 3},             // COMMIT waits for the count of rows
		{20, false, nil, 3},            //
		{20, false, []int{7}, 3 + 3},   // ROLLBACK TO; the rest; DELETE of its row
		{20, true, []int{7}, 2 + 4},    // and COMMIT
		{20, true, []int{7, 8}, 2 + 6}, //
	} {
		if got := flights(tt.n, tt.quick, tt.bad...); got != tt.want {
			t.Errorf("%d messages, COMMIT along %v, bad %v: %d flights, want %d", tt.n, tt.quick, tt.bad, got, tt.want)
		}
	}
	_ = db
}

func TestApplyQueue_DeferredConstraint(t *testing.T) {
	for _, quick := range []bool{true, false} {
		drivers(t, func(t *testing.T, db *sqlx.DB) {
			db.MustExec("ALTER TABLE effect ADD CONSTRAINT one UNIQUE (id) DEFERRABLE INITIALLY DEFERRED")
			db.MustExec("INSERT INTO effect (id) VALUES ('m003')")
			s := newQueueScript(t, 10)
			run := s.run
			if quick {
				run = s.quick
			}
			got := newBox(t, db, Config{}).ApplyQueue(t.Context(), s.ms, run)
			for i, r := range got {
				if want := map[bool]Outcome{true: Failed, false: Applied}[i == 3]; r.Outcome != want {
					t.Errorf("outcome of %d = %v (%v), want %v", i, r.Outcome, r.Err, want)
				}
			}
			if state(got[3].Err) != "23505" {
				t.Errorf("error = %v, want SQLSTATE 23505", got[3].Err)
			}
			wantEffects(t, db, ids(s.ms)...)
			wantRows(t, db, 9)
		})
	}
}

func TestApplyQueue_Collision(t *testing.T) {
	drivers(t, func(t *testing.T, db *sqlx.DB) {
		b := newBox(t, db, Config{})
		for _, n := range []int{1, 12} {
			s := newQueueScript(t, n)
			s.bad[n/2] = func(q *Queue) error {
				q.Exec("DO $$ BEGIN RAISE EXCEPTION 'collision' USING ERRCODE = '40001'; END $$")
				return nil
			}
			for i, r := range b.ApplyQueue(t.Context(), s.ms, s.run) {
				if r.Outcome != Again || state(r.Err) != "40001" || !uncharged(r.Err) {
					t.Errorf("outcome of %d = %v (%v), want again, 40001, uncharged", i, r.Outcome, r.Err)
				}
			}
			wantRows(t, db, 0)
		}
	})
}

// A context that ends is nobody's fault, wherever it ends, and nothing is committed.
func TestApplyQueue_ContextEnds(t *testing.T) {
	cause := errors.New("lease lost")
	drivers(t, func(t *testing.T, db *sqlx.DB) {
		b := newBox(t, db, Config{})
		for _, inServer := range []bool{false, true} {
			for _, n := range []int{1, 12} {
				ctx, cancel := context.WithCancelCause(t.Context())
				s := newQueueScript(t, n)
				s.bad[n-1] = func(q *Queue) error {
					if !inServer {
						cancel(cause)
						return nil
					}
					q.Exec("SELECT pg_sleep(30)")
					time.AfterFunc(50*time.Millisecond, func() { cancel(cause) })
					return nil
				}
				for _, run := range []queuer{s.run, s.quick} {
					for i, r := range b.ApplyQueue(ctx, s.ms, run) {
						if r.Outcome != Again || !errors.Is(r.Err, cause) || !uncharged(r.Err) {
							t.Errorf("outcome of %d of %d = %v (%v), want again, with the cause", i, n, r.Outcome, r.Err)
						}
					}
				}
				wantEffects(t, db)
				wantRows(t, db, 0)
			}
		}
	})
}

// A message that kills its connection leaves the others alone.
func TestApplyQueue_BackendKilled(t *testing.T) {
	drivers(t, func(t *testing.T, db *sqlx.DB) {
		b := newBox(t, db, Config{})
		kill := func(q *Queue) error { q.Exec("SELECT pg_terminate_backend(pg_backend_pid())"); return nil }
		s := newQueueScript(t, 20)
		s.bad[10] = kill
		got := s.apply(b, db, s.run, map[int]Outcome{10: Again})
		if !uncharged(got[10].Err) {
			t.Errorf("error = %v, must not be charged", got[10].Err)
		}
		one := newQueueScript(t, 1)
		one.ms[0].ID, one.bad[0] = "one", kill
		for _, run := range []queuer{one.run, one.quick} {
			wantOutcomes(t, b.ApplyQueue(t.Context(), one.ms, run), Again)
		}
	})
}

// COMMIT goes along, and the connection breaks around it: the next delivery tells.
func TestApplyQueue_CommitCutOff(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fault fault
		then  Outcome
	}{
		{"before it arrives", cutBefore, Applied},
		{"before the answer arrives", cutAfter, Duplicate},
	} {
		for _, n := range []int{1, 10} {
			t.Run(fmt.Sprint(tt.name, " ", n), func(t *testing.T) {
				address := devtest.PostgresURL(t)
				db := migrate(t, openURL(t, address))
				p, _ := newProxy(t, address, "COMMIT")
				p.statement = []byte("COMMIT\x00") // with others, not alone
				b := newBox(t, openWith(t, "pgx", withParams(t, p.address(t, address), "default_query_exec_mode=exec")), Config{})
				wantOutcome(t, b.Apply(t.Context(), Message{ID: "z"}, effect("z")), Applied)
				s := newQueueScript(t, n)
				p.next.Store(int32(tt.fault))
				wantUnknown(t, tt.then, func() []Result { return b.ApplyQueue(t.Context(), s.ms, s.quick) })
				wantEffects(t, db, append(ids(s.ms), "z")...)
			})
		}
	}
}

// The network swallows a COMMIT that goes along. The call returns all the same.
func TestApplyQueue_CommitSwallowed(t *testing.T) {
	address := devtest.PostgresURL(t)
	db := migrate(t, openURL(t, address))
	db.MustExec("CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(30); RETURN NULL; END $$")
	db.MustExec("CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON effect DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait()")
	b := newBox(t, openWith(t, "pgx", address), Config{CommitTimeout: 200 * time.Millisecond})
	s := newQueueScript(t, 3)
	start := time.Now()
	for i, r := range b.ApplyQueue(t.Context(), s.ms, s.quick) {
		if r.Outcome != Again || !errors.Is(r.Err, ErrUnknown) {
			t.Errorf("outcome of %d = %v (%v), want again, ErrUnknown", i, r.Outcome, r.Err)
		}
	}
	if took := time.Since(start); took < 200*time.Millisecond || took > 20*time.Second {
		t.Errorf("the call took %v, want 200ms", took)
	}
}

// A COMMIT that goes along is not stopped by the caller's context once the statements
// before it are through.
func TestApplyQueue_ContextEndsInCommit(t *testing.T) {
	db := onPgx(t)
	db.MustExec("CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock_shared(TG_RELID::int, 0); RETURN NULL; END $$")
	db.MustExec("CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON effect DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait()")
	b := newBox(t, db, Config{LockTimeout: time.Minute})
	gate := db.MustBegin()
	defer gate.Rollback()
	gate.MustExec("SELECT pg_advisory_xact_lock('effect'::regclass::int, 0)")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s := newQueueScript(t, 3)
	done := make(chan []Result, 1)
	go func() { done <- b.ApplyQueue(ctx, s.ms, s.quick) }()
	awaitBlocked(t, db, 1)
	cancel()
	select {
	case res := <-done:
		t.Errorf("the COMMIT was given up: %v", res)
		return
	case <-time.After(200 * time.Millisecond): // long enough for a cancelled one to end
	}
	must(t, gate.Rollback())
	wantOutcomes(t, <-done, Applied, Applied, Applied)
}

// Failures are charged with the effects of the others, and success forgives them.
func TestApplyQueue_Attempts(t *testing.T) {
	drivers(t, func(t *testing.T, db *sqlx.DB) {
		b := newBox(t, db, Config{MaxAttempts: 2})
		s := newQueueScript(t, 4)
		s.bad[1], s.bad[2] = queueBreaks, queueFails
		s.apply(b, db, s.quick, map[int]Outcome{1: Failed, 2: Failed})
		wantAttempts(t, db, "m001:1:0", "m002:1:0")
		s.bad = map[int]func(*Queue) error{2: queueMisses}
		s.ms = s.ms[1:3]
		s.bad = map[int]func(*Queue) error{1: queueMisses}
		wantOutcomes(t, b.ApplyQueue(t.Context(), s.ms, s.quick), Applied, Dead)
		wantAttempts(t, db)
	})
}

// Messages that wait behind a dead letter of their lock take part in the same COMMIT.
func TestApplyQueue_BesideParked(t *testing.T) {
	drivers(t, func(t *testing.T, db *sqlx.DB) {
		b := parking(t, db)
		wantDead(t, b.Apply(t.Context(), keyed("a", "x", 5), fails), 1, errBoom)
		s := newQueueScript(t, 2)
		s.ms[0], s.ms[1].Body = keyed("b", "x", 6), Bytes("m001")
		wantOutcomes(t, b.ApplyQueue(t.Context(), s.ms, s.quick), Parked, Applied)
		wantParked(t, db, "a dead", "b")
		wantEffects(t, db, "m001")
	})
}
