package inbox

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"

	"github.com/onceward/onceward/internal/devstack/devtest"
)

// letters is a table that dead letters are written to, with the transaction.
func letters(t testing.TB, db *sqlx.DB) (hook func(context.Context, *sqlx.Tx, DeadLetter) error, written func() []string) {
	t.Helper()
	db.MustExec("CREATE TABLE letter (seq bigserial, id text NOT NULL, attempts int NOT NULL)")
	hook = func(ctx context.Context, tx *sqlx.Tx, d DeadLetter) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO letter (id, attempts) VALUES ($1, $2)", d.Message.ID, d.Attempts)
		return err
	}
	return hook, func() []string {
		ls := []string{}
		must(t, db.Select(&ls, "SELECT id || ':' || attempts FROM letter ORDER BY seq"))
		return ls
	}
}

func wantLetters(t testing.TB, written func() []string, want ...string) {
	t.Helper()
	if got := written(); !slices.Equal(got, want) {
		t.Errorf("dead letters = %q, want %q", got, want)
	}
}

// wantAttempts checks the rows of inbox_attempt, each as "id:attempts:started".
func wantAttempts(t testing.TB, db *sqlx.DB, want ...string) {
	t.Helper()
	got := []string{}
	must(t, db.Select(&got, "SELECT id || ':' || attempts || ':' || started FROM inbox_attempt ORDER BY id"))
	if !slices.Equal(got, want) {
		t.Errorf("attempts = %q, want %q", got, want)
	}
}

func wantDead(t testing.TB, r Result, attempts int, cause error) {
	t.Helper()
	wantOutcome(t, r, Dead)
	e := as[*DeadError](t, r.Err)
	if e.Attempts != attempts || !errors.Is(r.Err, cause) || !skipped(r.Err) {
		t.Errorf("dead after %d attempts with %v, want %d, %v, and that nothing is left to do", e.Attempts, r.Err, attempts, cause)
	}
}

// A counter counts what is sent to the server: statements, BEGIN, COMMIT and ROLLBACK.
type counter struct {
	driver.Connector
	sent atomic.Int64
}

func (c *counter) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &countedConn{conn.(pqConn), c}, nil
}

type pqConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.QueryerContext
	driver.ExecerContext
	driver.NamedValueChecker
	driver.Pinger
	driver.SessionResetter
	driver.Validator
}

type countedConn struct {
	pqConn
	c *counter
}

func (c *countedConn) QueryContext(ctx context.Context, q string, args []driver.NamedValue) (driver.Rows, error) {
	c.c.sent.Add(1)
	return c.pqConn.QueryContext(ctx, q, args)
}

func (c *countedConn) ExecContext(ctx context.Context, q string, args []driver.NamedValue) (driver.Result, error) {
	c.c.sent.Add(1)
	return c.pqConn.ExecContext(ctx, q, args)
}

func (c *countedConn) BeginTx(ctx context.Context, o driver.TxOptions) (driver.Tx, error) {
	c.c.sent.Add(1)
	tx, err := c.pqConn.BeginTx(ctx, o)
	return countedTx{tx, c.c}, err
}

type countedTx struct {
	driver.Tx
	c *counter
}

func (t countedTx) Commit() error   { t.c.sent.Add(1); return t.Tx.Commit() }
func (t countedTx) Rollback() error { t.c.sent.Add(1); return t.Tx.Rollback() }

func newCountedDB(t *testing.T) (*sqlx.DB, *counter) {
	t.Helper()
	connector, err := pq.NewConnector(devtest.PostgresURL(t))
	must(t, err)
	c := &counter{Connector: connector}
	db := sqlx.NewDb(sql.OpenDB(c), "postgres")
	t.Cleanup(func() { db.Close() })
	return migrate(t, db), c
}

// While nothing fails, to count failures costs not one statement.
func TestAttempts_NoFurtherStatement(t *testing.T) {
	db, c := newCountedDB(t)
	counts := map[bool][]int64{}
	for _, on := range []bool{false, true} {
		cfg := Config{Consumer: fmt.Sprint(on)}
		if on {
			cfg.MaxAttempts = 3
		}
		b := newBox(t, db, cfg)
		count := func(f func()) {
			before := c.sent.Load()
			f()
			counts[on] = append(counts[on], c.sent.Load()-before)
		}
		nothing := func(context.Context, *sqlx.Tx, int) error { return nil }
		wantOutcome(t, b.Apply(t.Context(), Message{ID: "scope"}, effect("scope")), Applied)
		count(func() { b.Apply(t.Context(), Message{ID: "one", Fences: []Fence{{"x", 1}}}, effect("one")) })
		count(func() { b.ApplyBatch(t.Context(), messages(64), nothing) })
		ms := messages(8)
		for i := range ms {
			ms[i].ID += "s"
		}
		count(func() {
			b.ApplySet(t.Context(), ms, func(context.Context, *sqlx.Tx, []int) []error { return nil })
		})
		count(func() { b.ApplyBatch(t.Context(), messages(64), nothing) }) // duplicates
		count(func() { b.ApplyBatch(t.Context(), messages(64), nothing) }) // that were to be expected
	}
	// BEGIN, claim, effect, COMMIT; BEGIN, claim, SAVEPOINT, 8 strides, COMMIT; BEGIN, claim, COMMIT;
	// BEGIN, claim, look, ROLLBACK; BEGIN, look, ROLLBACK.
	if want := []int64{4, 12, 3, 4, 3}; !slices.Equal(counts[false], want) || !slices.Equal(counts[true], want) {
		t.Errorf("statements without %v, with %v, want %v", counts[false], counts[true], want)
	}
}

// Failures of one message in a batch are counted in its transaction, and the neighbours
// are not touched by it.
func TestAttempts_InTheBatch(t *testing.T) {
	drivers(t, func(t *testing.T, db *sqlx.DB) {
		hook, written := letters(t, db)
		b := newBox(t, db, Config{MaxAttempts: 3, DeadLetter: hook})
		s := newScript(t, messages(10))
		s.bad[4] = fails
		for n := 1; n < 3; n++ {
			got := s.apply(b, db, map[int]Outcome{4: Failed})
			if !errors.Is(got[4].Err, errBoom) {
				t.Errorf("error = %v, want the handler's", got[4].Err)
			}
			wantAttempts(t, db, fmt.Sprintf("m04:%d:0", n))
			db.MustExec("DELETE FROM inbox; DELETE FROM effect") // the others are new once more
		}
		got := b.ApplyBatch(t.Context(), s.ms, s.run)
		wantDead(t, got[4], 3, errBoom)
		wantEffects(t, db, ids(s.ms, 4)...)
		wantRows(t, db, 10)
		wantAttempts(t, db)
		wantLetters(t, written, "m04:3")
		var dead []string
		must(t, db.Select(&dead, "SELECT id FROM inbox WHERE dead"))
		if !slices.Equal(dead, []string{"m04"}) {
			t.Errorf("dead = %q, want m04", dead)
		}
		calls := s.calls[4]
		wantOutcome(t, b.ApplyBatch(t.Context(), s.ms, s.run)[4], Duplicate)
		if s.calls[4] != calls {
			t.Error("a dead message was handled")
		}
		wantLetters(t, written, "m04:3")
	})
}

// One message alone, whose transaction is rolled back, and one that a handler of sets was
// not able to name, are charged the same.
func TestAttempts_Apart(t *testing.T) {
	for name, apply := range map[string]func(b *Inbox, fail bool) Result{
		"single": func(b *Inbox, fail bool) Result {
			return b.Apply(t.Context(), messages(1)[0], func(ctx context.Context, tx *sqlx.Tx) error {
				err := effect("m00")(ctx, tx)
				if fail {
					return errors.Join(err, errBoom)
				}
				return err
			})
		},
		"set": func(b *Inbox, fail bool) Result {
			return b.ApplySet(t.Context(), messages(5), func(ctx context.Context, tx *sqlx.Tx, is []int) []error {
				if slices.Contains(is, 0) && fail {
					return all(is, errBoom)
				}
				return all(is, nil)
			})[0]
		},
		"set, named": func(b *Inbox, fail bool) Result {
			return b.ApplySet(t.Context(), messages(5), func(ctx context.Context, tx *sqlx.Tx, is []int) []error {
				errs := all(is, nil)
				if slices.Contains(is, 0) && fail {
					errs[0] = errBoom
				}
				return errs
			})[0]
		},
	} {
		t.Run(name, func(t *testing.T) {
			db := newDB(t)
			hook, written := letters(t, db)
			b := newBox(t, db, Config{MaxAttempts: 3, DeadLetter: hook})
			for n := 1; n < 3; n++ {
				wantOutcome(t, apply(b, true), Failed)
				wantAttempts(t, db, fmt.Sprintf("m00:%d:0", n))
			}
			// Another process, which has seen none of the failures.
			wantDead(t, apply(newBox(t, db, Config{MaxAttempts: 3, DeadLetter: hook}), true), 3, errBoom)
			wantAttempts(t, db)
			wantLetters(t, written, "m00:3")
			wantOutcome(t, apply(b, false), Duplicate)
			wantEffects(t, db)
		})
	}
}

// A message that succeeds after failures loses the memory of them with its effect, or
// keeps it if that is not committed.
func TestAttempts_SuccessForgives(t *testing.T) {
	for _, n := range []int{1, 6} {
		t.Run(fmt.Sprint(n, " messages"), func(t *testing.T) {
			db := newDB(t)
			db.MustExec("ALTER TABLE effect ADD CONSTRAINT one UNIQUE (id) DEFERRABLE INITIALLY DEFERRED")
			b := newBox(t, db, Config{MaxAttempts: 5})
			s := newScript(t, messages(n))
			s.bad[0] = fails
			wantOutcome(t, b.ApplyBatch(t.Context(), s.ms, s.run)[0], Failed)
			wantAttempts(t, db, "m00:1:0")

			db.MustExec("INSERT INTO effect (id) VALUES ('m00')") // COMMIT will be refused
			s.bad[0] = nil
			wantOutcome(t, b.ApplyBatch(t.Context(), s.ms, s.run)[0], Failed)
			wantAttempts(t, db, "m00:2:0")

			db.MustExec("DELETE FROM effect WHERE id = 'm00'")
			wantOutcome(t, b.ApplyBatch(t.Context(), s.ms, s.run)[0], Applied)
			wantAttempts(t, db)
			wantEffects(t, db, ids(s.ms)...)
		})
	}
}

// A handler that has failed before and now hides an error has failed once more, and so has
// one that ends the transaction.
func TestAttempts_HiddenAfterFailure(t *testing.T) {
	end := func(ctx context.Context, tx *sqlx.Tx) error { _, err := tx.ExecContext(ctx, "ROLLBACK"); return err }
	for i, bad := range []func(context.Context, *sqlx.Tx) error{hides, end} {
		db := newDB(t)
		want := ErrSwallowed
		if i == 1 && db.DriverName() == "pgx" { // which knows more
			want = ErrEnded
		}
		b := newBox(t, db, Config{MaxAttempts: 3})
		for n := 1; n < 3; n++ {
			r := b.Apply(t.Context(), Message{ID: "a"}, bad)
			wantOutcome(t, r, Failed)
			if !errors.Is(r.Err, want) {
				t.Errorf("error = %v, want %v", r.Err, want)
			}
			wantAttempts(t, db, fmt.Sprintf("a:%d:0", n))
		}
		wantDead(t, b.Apply(t.Context(), Message{ID: "a"}, bad), 3, want)
	}
	db := newDB(t)
	b := newBox(t, db, Config{MaxAttempts: 3})
	for n := 1; n < 3; n++ {
		got := b.ApplySet(t.Context(), messages(4), func(ctx context.Context, tx *sqlx.Tx, is []int) []error {
			if slices.Contains(is, 2) {
				return all(is, hides(ctx, tx))
			}
			return nil
		})
		if got[2].Outcome != Failed || !errors.Is(got[2].Err, ErrSwallowed) {
			t.Errorf("outcome = %v (%v), want failed, ErrSwallowed", got[2].Outcome, got[2].Err)
		}
		wantAttempts(t, db, fmt.Sprintf("m02:%d:0", n))
	}
}

// What a message can never overcome needs no further attempts.
func TestAttempts_Permanent(t *testing.T) {
	for _, n := range []int{1, 5} {
		db := newDB(t)
		hook, written := letters(t, db)
		b := newBox(t, db, Config{MaxAttempts: 5, DeadLetter: hook})
		s := newScript(t, messages(n))
		s.bad[0] = func(context.Context, *sqlx.Tx) error { return fmt.Errorf("no such order: %w", never{}) }
		got := b.ApplyBatch(t.Context(), s.ms, s.run)
		wantDead(t, got[0], 1, never{})
		wantLetters(t, written, "m00:1")
		wantAttempts(t, db)
		wantEffects(t, db, ids(s.ms, 0)...)
		wantRows(t, db, n)
	}
}

type never struct{}

func (never) Error() string   { return "never" }
func (never) Permanent() bool { return true }

// marked is an error with a class.
type marked struct{ uncharged, stopped bool }

func (marked) Error() string     { return "marked" }
func (m marked) Uncharged() bool { return m.uncharged }
func (m marked) Stopped() bool   { return m.stopped }

// Who is not at fault is not charged, and who asks to stop is not either.
func TestAttempts_NotCharged(t *testing.T) {
	for name, err := range map[string]error{
		"uncharged": marked{uncharged: true}, "stop": marked{stopped: true},
		"collision": &pq.Error{Code: "40001"}, "disk full": &pq.Error{Code: "53100"}, "context": context.Canceled,
	} {
		for _, n := range []int{1, 5} {
			t.Run(fmt.Sprint(name, " of ", n), func(t *testing.T) {
				db := newDB(t)
				b := newBox(t, db, Config{MaxAttempts: 1})
				s := newScript(t, messages(n))
				s.bad[0] = func(context.Context, *sqlx.Tx) error { return err }
				r := b.ApplyBatch(t.Context(), s.ms, s.run)[0]
				if r.Outcome.Decided() || !errors.Is(r.Err, err) {
					t.Errorf("outcome = %v (%v), want that it is tried again", r.Outcome, r.Err)
				}
				wantAttempts(t, db)
			})
		}
	}
}

// A handler that leaves its transaction idle for too long is charged: see 25P03.
func TestAttempts_IdleIsCharged(t *testing.T) {
	for err, want := range map[error]blame{
		fmt.Errorf("x: %w", &pq.Error{Code: "25P03"}):                                   guilty,
		fmt.Errorf("%w: %w", ErrIdle, errors.Join(context.Canceled, driver.ErrBadConn)): guilty,
	} {
		if got := weigh(err); got != want {
			t.Errorf("blame of %v = %v, want %v", err, got, want)
		}
	}
	db := newDB(t)
	b := newBox(t, db, Config{MaxAttempts: 2, MaxHold: time.Second})
	m := messages(1)[0]
	idle := func(ctx context.Context, tx *sqlx.Tx) error {
		time.Sleep(1200 * time.Millisecond) // the server's clock is what ends it
		return effect("x")(ctx, tx)
	}
	r := b.Apply(t.Context(), m, idle)
	wantOutcome(t, r, Failed)
	if !errors.Is(r.Err, ErrIdle) {
		t.Errorf("error = %v, want ErrIdle", r.Err)
	}
	wantAttempts(t, db, "m00:1:0")
	wantDead(t, b.Apply(t.Context(), m, idle), 2, ErrIdle)
	wantEffects(t, db)
}

// If the transaction of the batch fails as a whole, nothing of its accounts is kept.
func TestAttempts_CollisionChargesNobody(t *testing.T) {
	db := newDB(t)
	b := newBox(t, db, Config{MaxAttempts: 2})
	s := newScript(t, messages(12))
	s.bad[2] = fails
	s.bad[10] = func(ctx context.Context, tx *sqlx.Tx) error {
		_, err := tx.ExecContext(ctx, "DO $$ BEGIN RAISE EXCEPTION 'collision' USING ERRCODE = '40001'; END $$")
		return err
	}
	got := b.ApplyBatch(t.Context(), s.ms, s.run)
	for i, r := range got {
		want := Again
		if i == 2 { // its own failure is known, and charged apart
			want = Failed
		}
		wantOutcome(t, r, want)
	}
	wantAttempts(t, db, "m02:1:0")
	wantRows(t, db, 0)
}

// If the COMMIT of a batch is refused because of another, a failure in it is not lost: it is
// charged once, by itself.
func TestAttempts_CommitRefused(t *testing.T) {
	db := newDB(t)
	hook, written := letters(t, db)
	db.MustExec("ALTER TABLE effect ADD CONSTRAINT one UNIQUE (id) DEFERRABLE INITIALLY DEFERRED")
	db.MustExec("INSERT INTO effect (id) VALUES ('m07')")
	b := newBox(t, db, Config{MaxAttempts: 2, DeadLetter: hook})
	s := newScript(t, messages(10))
	s.bad[2] = fails
	got := b.ApplyBatch(t.Context(), s.ms, s.run)
	wantOutcomes(t, got, Applied, Applied, Failed, Applied, Applied, Applied, Applied, Failed, Applied, Applied)
	wantAttempts(t, db, "m02:1:0", "m07:1:0")
	for i := range s.ms {
		if i != 2 && i != 7 {
			s.ms[i].ID += "'"
		}
	}
	got = b.ApplyBatch(t.Context(), s.ms, s.run)
	wantOutcomes(t, got, Applied, Applied, Dead, Applied, Applied, Applied, Applied, Dead, Applied, Applied)
	wantAttempts(t, db)
	if ls := written(); len(ls) != 2 || !slices.Contains(ls, "m02:2") || !slices.Contains(ls, "m07:2") {
		t.Errorf("dead letters = %q, want one of each, after 2 attempts", ls)
	}
}

// The accounts of a batch whose COMMIT is cut off are as unknown as the rest, and are
// written once.
func TestAttempts_CommitCutOff(t *testing.T) {
	for f, want := range map[fault][]string{cutBefore: {}, cutAfter: {"m03:1:0"}} {
		address := devtest.PostgresURL(t)
		db := migrate(t, openURL(t, address))
		p, far := newProxy(t, address, "COMMIT")
		b := newBox(t, far, Config{MaxAttempts: 3})
		wantOutcome(t, b.Apply(t.Context(), Message{ID: "z"}, effect("z")), Applied) // so that the scope is known
		s := newScript(t, messages(10))
		s.bad[3] = fails
		p.next.Store(int32(f))
		for i, r := range b.ApplyBatch(t.Context(), s.ms, s.run) {
			if i != 3 && (r.Outcome != Again || !errors.Is(r.Err, ErrUnknown)) {
				t.Errorf("outcome of %d = %v (%v), want again, ErrUnknown", i, r.Outcome, r.Err)
			}
			if i == 3 && r.Outcome != Failed {
				t.Errorf("outcome of the bad one = %v (%v), want failed", r.Outcome, r.Err)
			}
		}
		wantAttempts(t, db, want...)
	}
}

// A message whose failure could not be charged because somebody else decided it meanwhile
// is what that one made of it.
func TestAttempts_DecidedMeanwhile(t *testing.T) {
	db := newDB(t)
	b := newBox(t, db, Config{MaxAttempts: 1})
	other := newBox(t, db, Config{})
	m := Message{ID: "a"}
	done := make(chan Result, 1)
	r := b.Apply(t.Context(), m, func(context.Context, *sqlx.Tx) error {
		go func() { done <- other.Apply(context.Background(), m, effect("other")) }()
		awaitBlocked(t, db, 1) // it waits for our claim, and gets it when we roll back
		return errBoom
	})
	if r.Outcome == Dead { // the charge has overtaken who waits, most of all with pgx
		wantOutcome(t, <-done, Duplicate)
		wantEffects(t, db)
		return
	}
	wantOutcome(t, <-done, Applied)
	wantOutcome(t, r, Duplicate)
	wantAttempts(t, db)
	wantEffects(t, db, "other")
}

// Failures that are nobody's fault are not counted for ever.
func TestAttempts_UnchargedAreBounded(t *testing.T) {
	for name, bad := range map[string]func(ctx context.Context, tx *sqlx.Tx) error{
		"says so":    func(context.Context, *sqlx.Tx) error { return marked{uncharged: true} },
		"lock":       func(context.Context, *sqlx.Tx) error { return &pq.Error{Code: lockNotAvailable} },
		"collision":  func(context.Context, *sqlx.Tx) error { return &pq.Error{Code: deadlockDetected} },
		"connection": func(ctx context.Context, tx *sqlx.Tx) error { return breakConn(ctx, tx) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDB(t)
			hook, written := letters(t, db)
			b := newBox(t, db, Config{MaxAttempts: 2, DeadLetter: hook})
			s := newScript(t, messages(3))
			s.bad[1] = bad
			for n := range MaxUncharged {
				if r := b.ApplyBatch(t.Context(), s.ms, s.run)[1]; r.Outcome.Decided() {
					t.Fatalf("failure %d: %v (%v)", n+1, r.Outcome, r.Err)
				}
				wantAttempts(t, db)
			}
			r := b.ApplyBatch(t.Context(), s.ms, s.run)[1]
			wantOutcome(t, r, Failed)
			wantAttempts(t, db, "m01:1:0")
			wantOutcome(t, b.ApplyBatch(t.Context(), s.ms, s.run)[1], Dead)
			wantLetters(t, written, "m01:2")
			for _, i := range []int{0, 2} { // also after collisions: batches shrink until they are alone
				wantOutcome(t, b.Apply(t.Context(), s.ms[i], effect(s.ms[i].ID)), Duplicate)
			}
		})
	}
}

// breakConn has the server end the connection of a transaction.
func breakConn(ctx context.Context, tx *sqlx.Tx) error {
	_, err := tx.ExecContext(ctx, "SELECT pg_terminate_backend(pg_backend_pid())")
	return err
}

// A success ends the row of failures.
func TestAttempts_StreakEnds(t *testing.T) {
	db := newDB(t)
	b := newBox(t, db, Config{MaxAttempts: 1})
	m := Message{ID: "a"}
	bad := func(context.Context, *sqlx.Tx) error { return marked{uncharged: true} }
	for range MaxUncharged {
		wantOutcome(t, b.Apply(t.Context(), m, bad), Failed)
	}
	wantOutcome(t, b.Apply(t.Context(), m, effect("a")), Applied)
	db.MustExec("DELETE FROM inbox")
	wantOutcome(t, b.Apply(t.Context(), m, bad), Failed)
	wantOutcome(t, b.Apply(t.Context(), m, bad), Failed)
}

func TestStreaks(t *testing.T) {
	var s streaks
	key := func(i int) (u uuid) { u[0], u[1], u[2] = byte(i), byte(i>>8), byte(i>>16); return u }
	for range 3 {
		s.add(key(0))
	}
	for i := range maxStreaks - 1 {
		s.add(key(i + 1))
	}
	if got := s.add(key(0)); got != 4 {
		t.Errorf("failures with all remembered = %d, want 4", got)
	}
	s.add(key(maxStreaks)) // one too many
	if got := s.add(key(0)); got != 1 {
		t.Errorf("failures after all was forgotten = %d, want 1", got)
	}
	for range 3 * MaxUncharged {
		s.add(key(0))
	}
	if got := s.add(key(0)); got != MaxUncharged+1 {
		t.Errorf("failures = %d, want no more than are asked for", got)
	}
}

// What is known of failures is purged and forgotten like the rest, and counted.
func TestAttempts_Retention(t *testing.T) {
	db := newDB(t)
	w, scope := newRowWalk(t, db, keepADay)
	b := newBox(t, db, Config{MaxAttempts: 5})
	for _, id := range []string{"old", "young", "jane@example.org"} {
		wantOutcome(t, b.Apply(t.Context(), Message{ID: id}, fails), Failed)
	}
	other := newBox(t, db, Config{MaxAttempts: 5, Consumer: "other"})
	wantOutcome(t, other.Apply(t.Context(), Message{ID: "theirs"}, fails), Failed)
	db.MustExec("UPDATE inbox_attempt SET at = now() - interval '25 hours' WHERE id IN ('old', 'theirs')")
	must(t, w.walk(t.Context()))
	wantAttempts(t, db, "jane@example.org:1:0", "theirs:1:0", "young:1:0")

	if known, err := b.Forget(t.Context(), "jane@example.org"); err != nil || !known {
		t.Errorf("Forget = %v, %v, want true", known, err)
	}
	var readable int
	must(t, db.Get(&readable, "SELECT count(*) FROM inbox_attempt WHERE id LIKE 'jane%' OR last LIKE '%jane%'"))
	if readable != 0 {
		t.Error("the ID can still be read")
	}
	s, err := b.Stats(t.Context())
	must(t, err)
	if s.Failed != 2 {
		t.Errorf("Stats.Failed = %d, want 2 of scope %d", s.Failed, scope)
	}
}
