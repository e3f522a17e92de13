package inbox

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"

	"github.com/onceward/onceward/internal/devstack/devtest"
)

// childURL is the environment variable that makes TestSuspect_Child the child process of
// TestSuspect_KillsItsProcess.
const childURL = "ONCEWARD_TEST_SUSPECT"

func suspects(n int) []Message {
	ms := messages(n)
	for i := range ms {
		ms[i].Suspect = true
	}
	return ms
}

// The child handles three suspects, and the second one kills it.
func TestSuspect_Child(t *testing.T) {
	address := os.Getenv(childURL)
	if address == "" {
		t.Skip("runs as a child of TestSuspect_KillsItsProcess")
	}
	db := openURL(t, address)
	s := newScript(t, suspects(3))
	s.bad[1] = func(context.Context, *sqlx.Tx) error {
		os.Exit(42)
		return nil
	}
	newBox(t, db, Config{MaxAttempts: 5, MaxStarts: 2}).ApplyBatch(t.Context(), s.ms, s.run)
	t.Fatal("the process lives")
}

// A message that kills its process is given up after so many deaths, and nobody else is
// blamed for them.
func TestSuspect_KillsItsProcess(t *testing.T) {
	address := devtest.PostgresURL(t)
	db := migrate(t, openURL(t, address))
	hook, written := letters(t, db)
	s := newScript(t, suspects(3))
	for n := 1; n <= 2; n++ {
		cmd := exec.Command(os.Args[0], "-test.run=^TestSuspect_Child$")
		cmd.Env = append(os.Environ(), childURL+"="+address)
		out, err := cmd.CombinedOutput()
		if e := as[*exec.ExitError](t, err); e.ExitCode() != 42 {
			t.Fatalf("child ended with %v:\n%s", err, out)
		}
		wantAttempts(t, db, "m01:0:"+map[int]string{1: "1", 2: "2"}[n])
		wantEffects(t, db, "m00")
	}
	s.bad[1] = func(context.Context, *sqlx.Tx) error { t.Error("it was handled once more"); return nil }
	b := newBox(t, db, Config{MaxAttempts: 5, MaxStarts: 2, DeadLetter: hook})
	got := b.ApplyBatch(t.Context(), s.ms, s.run)
	wantOutcomes(t, got, Duplicate, Dead, Applied)
	if e := as[*CrashError](t, got[1].Err); e.Starts != 2 || !permanent(e) {
		t.Errorf("error = %+v, want 2 starts", e)
	}
	wantLetters(t, written, "m01:0")
	wantAttempts(t, db)
	wantEffects(t, db, "m00", "m02")
	wantOutcomes(t, b.ApplyBatch(t.Context(), s.ms, s.run), Duplicate, Duplicate, Duplicate)
}

// However the handler of a suspect ends, its start is taken back.
func TestSuspect_EndsAnyway(t *testing.T) {
	for name, tt := range map[string]struct {
		bad  func(context.Context, *sqlx.Tx) error
		want Outcome
		left []string
	}{
		"success":    {nil, Applied, nil},
		"skip":       {skips, Skipped, nil},
		"failure":    {fails, Failed, []string{"m01:1:0"}},
		"panic":      {panics, Failed, []string{"m01:1:0"}},
		"SQL error":  {breaks, Failed, []string{"m01:1:0"}},
		"hidden":     {hides, Failed, []string{"m01:1:0"}},
		"uncharged":  {func(context.Context, *sqlx.Tx) error { return marked{uncharged: true} }, Failed, nil},
		"stop":       {func(context.Context, *sqlx.Tx) error { return marked{stopped: true} }, Failed, nil},
		"collision":  {func(context.Context, *sqlx.Tx) error { return &pq.Error{Code: deadlockDetected} }, Again, nil},
		"connection": {breakConn, Again, nil},
		"permanent":  {func(context.Context, *sqlx.Tx) error { return never{} }, Dead, nil},
	} {
		t.Run(name, func(t *testing.T) {
			db := newDB(t)
			b := newBox(t, db, Config{MaxAttempts: 5})
			s := newScript(t, suspects(3))
			started := false
			s.bad[1] = func(ctx context.Context, tx *sqlx.Tx) error {
				started = true
				wantAttempts(t, db, "m01:0:1") // committed, while the handler is at work
				if tt.bad == nil {
					return nil
				}
				return tt.bad(ctx, tx)
			}
			got := b.ApplyBatch(t.Context(), s.ms, s.run)
			wantOutcomes(t, got, Applied, tt.want, Applied)
			if !started {
				t.Error("the handler did not run: the test shows nothing")
			}
			wantAttempts(t, db, tt.left...)
			if s.calls[1] != 1 {
				t.Errorf("%d calls, want 1", s.calls[1])
			}
		})
	}
}

// So it is if the context ends, and if the message has failures on record.
func TestSuspect_ContextEnds(t *testing.T) {
	db := newDB(t)
	b := newBox(t, db, Config{MaxAttempts: 5})
	m := suspects(1)[0]
	wantOutcome(t, b.Apply(t.Context(), m, fails), Failed)
	ctx, cancel := context.WithCancel(t.Context())
	wantOutcome(t, b.Apply(ctx, m, func(context.Context, *sqlx.Tx) error {
		wantAttempts(t, db, "m00:1:1")
		cancel()
		return nil
	}), Again)
	wantAttempts(t, db, "m00:1:0")
	wantOutcome(t, b.Apply(t.Context(), m, effect("m00")), Applied)
	wantAttempts(t, db)
}

// What is decided, stale or busy is not begun.
func TestSuspect_NotBegun(t *testing.T) {
	db := newDB(t)
	b := newBox(t, db, Config{MaxAttempts: 5, LockTimeout: 20 * time.Millisecond})
	m := suspects(1)[0]
	m.Fences[0].Token = 5
	wantOutcome(t, b.Apply(t.Context(), m, effect("m00")), Applied)
	db.MustExec("CREATE FUNCTION never() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'begun'; END $$")
	db.MustExec("CREATE TRIGGER never BEFORE INSERT ON inbox_attempt FOR EACH ROW EXECUTE FUNCTION never()")
	wantOutcome(t, b.Apply(t.Context(), m, effect("m00")), Duplicate)
	other := Message{ID: "other", Suspect: true, Fences: []Fence{{m.Fences[0].Resource, 4}}}
	wantOutcome(t, b.Apply(t.Context(), other, effect("other")), Stale)
	r := claims(t, newBox(t, db, Config{}), Message{ID: "held"})
	wantOutcome(t, b.Apply(t.Context(), Message{ID: "held", Suspect: true}, effect("held")), Busy)
	r.ends(t, errBoom)
	res := b.Apply(t.Context(), Message{ID: "held", Suspect: true}, effect("held"))
	wantOutcome(t, res, Again)
	if !strings.Contains(res.Err.Error(), "begun") {
		t.Errorf("error = %v, want that of the trigger: the test shows nothing", res.Err)
	}
	wantEffects(t, db, "m00")
}

// A start whose COMMIT got no answer does not count.
func TestSuspect_StartCutOff(t *testing.T) {
	for _, f := range []fault{cutBefore, cutAfter} {
		address := devtest.PostgresURL(t)
		db := migrate(t, openURL(t, address))
		p, far := newProxy(t, address, "COMMIT")
		b := newBox(t, far, Config{MaxAttempts: 5})
		wantOutcome(t, b.Apply(t.Context(), Message{ID: "z"}, effect("z")), Applied) // so that the scope is known
		p.next.Store(int32(f))
		m := suspects(1)[0]
		wantOutcome(t, b.Apply(t.Context(), m, func(context.Context, *sqlx.Tx) error { return errors.New("handled") }), Again)
		wantAttempts(t, db)
		wantOutcome(t, b.Apply(t.Context(), m, effect("m00")), Applied)
	}
}

// Where failures are not counted a suspect is alone, and that is all.
func TestSuspect_NotCounted(t *testing.T) {
	db, c := newCountedDB(t)
	b := newBox(t, db, Config{})
	wantOutcome(t, b.Apply(t.Context(), Message{ID: "z"}, effect("z")), Applied)
	before := c.sent.Load()
	s := newScript(t, suspects(3))
	wantOutcomes(t, b.ApplyBatch(t.Context(), s.ms, s.run), Applied, Applied, Applied)
	if got := c.sent.Load() - before; got != 3*4 { // BEGIN, claim, effect, COMMIT
		t.Errorf("%d statements, want 12", got)
	}
}
