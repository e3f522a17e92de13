package inbox

import (
	"context"
	"crypto/rand"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/jmoiron/sqlx"

	"github.com/onceward/onceward/internal/devstack/devtest"
	"github.com/onceward/onceward/watchdog"
)

const envPgBouncer = "ONCEWARD_TEST_PGBOUNCER"

// behindPgBouncer reports whether all pools of this process lead through PgBouncer.
func behindPgBouncer() bool { return os.Getenv(envPgBouncer) != "" }

// pooled returns the address for a pool of that driver: by way of PgBouncer, in such a
// process, if it is of a test's own schema.
func pooled(t testing.TB, driver, address string) string {
	t.Helper()
	if !behindPgBouncer() || !strings.Contains(address, "application_name=") {
		return address
	}
	// What a driver needs there. The inbox's own statements do without binary_parameters,
	// those of the tests do not.
	return withParams(t, devtest.PgBouncerURL(t, address), map[string]string{"postgres": "binary_parameters=yes", "pgx": "default_query_exec_mode=exec"}[driver])
}

// notBehindPgBouncer are tests that say nothing about a pooler: of plans, of roles that
// PgBouncer does not know, of what it cannot do (prepared statements), of flights to the
// server itself, and long ones.
const notBehindPgBouncer = "^(TestPgBouncer.*|TestRace_BusyUnderAnyPlan|TestApplyBatch_OneBadIn64|TestSuspect.*|TestAttempt.*|TestFault_(Server|Long|Frozen|Strange).*|TestLoad_CountingFailures|TestPgx.*|TestDead.*|TestPark.*|TestApplyBatch_Savepoints|TestTasks_Policies.*|TestCheck_R.*|TestPrepare.*|TestMigrate.*|TestExport.*|TestSchema.*|TestLoad_Unsorted.*|TestProcess.*|TestUpgrade.*|TestUnknownCommit.*|TestApplyQueue_Flights|Example.*)$"

// The tests of this package pass behind PgBouncer in transaction mode, where each
// transaction of a client may run on another connection.
func TestPgBouncer_AllTests(t *testing.T) {
	if behindPgBouncer() {
		t.Skip("this is the process behind it")
	}
	devtest.PgBouncerURL(t, devtest.PostgresURL(t)) // skips here if there is none
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.skip="+notBehindPgBouncer, "-test.timeout=5m", "-test.shuffle=on")
	cmd.Env = append(os.Environ(), envPgBouncer+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// Nothing needs two messages on one connection outside of a transaction, which lib/pq
// makes of a statement with arguments, and PgBouncer tears apart.
func TestPgBouncer_StatementsOutsideOfTransactions(t *testing.T) {
	address := devtest.PgBouncerURL(t, devtest.PostgresURL(t))
	db, err := sqlx.Open("postgres", address)
	must(t, err)
	t.Cleanup(func() { db.Close() })
	migrate(t, db)
	// Two connections of PgBouncer's, so that it has a choice, and takes turns.
	one, two := db.MustBegin(), db.MustBegin()
	one.MustExec("SELECT 1")
	two.MustExec("SELECT 1")
	must(t, one.Rollback())
	must(t, two.Rollback())
	control := func() {
		t.Helper()
		var n int
		if err := db.Get(&n, "SELECT $1::int", 1); state(err) != "26000" {
			t.Fatalf("a statement in two parts: %v, want 26000, or this test finds nothing", err)
		}
	}

	control()
	b := newBox(t, db, Config{})
	nothing := func(context.Context, *sqlx.Tx) error { return nil }
	for name, step := range map[string]func(){
		"Check": func() { must(t, Check(t.Context(), db)) },
		"Apply": func() { wantOutcome(t, b.Apply(t.Context(), Message{ID: rand.Text()}, nothing), Applied) },
		"Answer": func() {
			wantOutcome(t, b.Answer(t.Context(), Message{ID: rand.Text()}, func(context.Context, *sqlx.Tx) ([]byte, error) { return []byte("x"), nil }), Applied)
		},
		"Stats": func() {
			_, err := b.Stats(t.Context())
			must(t, err)
		},
		"Forget": func() {
			_, err := b.Forget(t.Context(), "a")
			must(t, err)
		},
		"Revive": func() {
			_, err := b.Revive(t.Context(), "a")
			must(t, err)
		},
		"ParkedKeys": func() {
			_, err := b.ParkedKeys(t.Context())
			must(t, err)
		},
		"Mark": func() { must(t, b.Mark(t.Context(), []Run{{Topic: [16]byte{1}, From: 1, Upto: 2}})) },
		"Purge": func() {
			w, _ := newRowWalk(t, db, keepADay)
			must(t, w.walk(t.Context()))
		},
		"Tasks": func() { useTask(t, b) },
	} {
		for range 3 { // whoever's turn it is
			step()
		}
		if t.Failed() {
			t.Fatalf("%s failed", name)
		}
	}
	control()
}

// useTask takes a task through all statements of tasks.
func useTask(t *testing.T, b *Inbox) {
	t.Helper()
	tasks, err := NewTasks(b, TasksConfig{Unknown: Park})
	must(t, err)
	defer tasks.Close()
	scope, err := b.scopeID(t.Context())
	must(t, err)
	m := Message{ID: rand.Text()}
	e, err := b.newEntry(0, &m)
	must(t, err)
	w := newWork(t.Context(), tasks, e, scope)
	defer w.cancel(nil)
	_, err = w.start(t.Context())
	must(t, err)
	if got := tasks.renew(t.Context(), []*watchdog.Lease{&w.lease}); !slices.Equal(got, []watchdog.Verdict{watchdog.Held}) {
		t.Errorf("renewal = %v, want held", got)
	}
	n, err := w.exec(t.Context(), tasks.sql.expire)
	must(t, err)
	if n != 1 {
		t.Errorf("%d tasks expired, want 1", n)
	}
	wantOutcome(t, tasks.Do(t.Context(), m, func(context.Context, Task) error { return nil }), Parked)
	must(t, tasks.Resolve(t.Context(), m.ID, true))
	wantOutcome(t, tasks.Do(t.Context(), m, func(context.Context, Task) error { return nil }), Duplicate)
}
