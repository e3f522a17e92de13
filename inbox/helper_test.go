package inbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // driver "pgx"
	"github.com/jmoiron/sqlx"
	"go.uber.org/goleak"

	"github.com/onceward/onceward/internal/devstack/devtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errBoom = errors.New("boom")

// open returns a pool on an empty schema of its own, with extra parameters in its address.
func open(t testing.TB, params ...string) *sqlx.DB {
	t.Helper()
	return openURL(t, withParams(t, devtest.PostgresURL(t), params...))
}

// openURL returns a pool of lib/pq, or of the driver that ONCEWARD_DRIVER names: "pgx".
func openURL(t testing.TB, address string) *sqlx.DB {
	t.Helper()
	return openWith(t, cmp.Or(os.Getenv("ONCEWARD_DRIVER"), "postgres"), address)
}

func openWith(t testing.TB, driver, address string) *sqlx.DB {
	t.Helper()
	db, err := sqlx.Open(driver, pooled(t, driver, address))
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxIdleConns(64)
	t.Cleanup(func() { db.Close() })
	return db
}

func withParams(t testing.TB, address string, params ...string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	for _, p := range params {
		k, v, _ := strings.Cut(p, "=")
		q.Set(k, v)
	}
	u.RawQuery = strings.ReplaceAll(q.Encode(), "+", "%20") // pgx takes "+" for itself
	return u.String()
}

// migrate makes the tables of the inbox and those of the tests' handlers.
func migrate(t testing.TB, db *sqlx.DB) *sqlx.DB {
	t.Helper()
	if err := Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	db.MustExec(`CREATE TABLE effect (seq bigserial, id text NOT NULL, n int NOT NULL DEFAULT 1 CHECK (n > 0))`)
	return db
}

func newDB(t testing.TB, params ...string) *sqlx.DB {
	t.Helper()
	return migrate(t, open(t, params...))
}

func newBox(t testing.TB, db *sqlx.DB, cfg Config) *Inbox {
	t.Helper()
	if cfg.Consumer == "" {
		cfg.Consumer = "test"
	}
	b, err := New(db, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// drivers runs a test for each way in which parameters travel.
func drivers(t *testing.T, f func(t *testing.T, db *sqlx.DB)) {
	for name, way := range map[string]struct {
		driver string
		params []string
	}{
		"lib pq text":         {"postgres", nil},
		"lib pq binary":       {"postgres", []string{"binary_parameters=yes"}},
		"pgx prepared":        {"pgx", nil},
		"pgx exec":            {"pgx", []string{"default_query_exec_mode=exec"}},
		"pgx simple protocol": {"pgx", []string{"default_query_exec_mode=simple_protocol"}},
	} {
		if behindPgBouncer() && name != "lib pq binary" && name != "pgx exec" || !behindPgBouncer() && name == "pgx exec" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			f(t, migrate(t, openWith(t, way.driver, withParams(t, devtest.PostgresURL(t), way.params...))))
		})
	}
}

// effect is a handler that writes one row.
func effect(id string) func(context.Context, *sqlx.Tx) error {
	return func(ctx context.Context, tx *sqlx.Tx) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO effect (id) VALUES ($1)", id)
		return err
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// effects returns the IDs of all committed effects, sorted.
func effects(t testing.TB, db *sqlx.DB) []string {
	t.Helper()
	ids := []string{}
	must(t, db.Select(&ids, "SELECT id FROM effect ORDER BY id"))
	return ids
}

func wantEffects(t testing.TB, db *sqlx.DB, want ...string) {
	t.Helper()
	if got := effects(t, db); !slices.Equal(got, want) {
		t.Errorf("effects = %q, want %q", got, want)
	}
}

func wantRows(t testing.TB, db *sqlx.DB, want int) {
	t.Helper()
	var got int
	must(t, db.Get(&got, "SELECT count(*) FROM inbox"))
	if got != want {
		t.Errorf("rows of inbox = %d, want %d", got, want)
	}
}

func wantOutcome(t testing.TB, got Result, want Outcome) {
	t.Helper()
	if got.Outcome != want {
		t.Errorf("outcome = %v (%v), want %v", got.Outcome, got.Err, want)
	}
	if (got.Err == nil) != (got.Outcome == Applied || got.Outcome == Duplicate) {
		t.Errorf("outcome %v has error %v", got.Outcome, got.Err)
	}
}

func wantOutcomes(t testing.TB, got []Result, want ...Outcome) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d results, want %d", len(got), len(want))
	}
	for i := range got {
		if got[i].Outcome != want[i] {
			t.Errorf("outcome %d = %v (%v), want %v", i, got[i].Outcome, got[i].Err, want[i])
		}
	}
}

// wantUnknown applies messages of which the answer to COMMIT is lost, and then again.
func wantUnknown(t testing.TB, then Outcome, apply func() []Result) {
	t.Helper()
	for i, r := range apply() {
		if r.Outcome != Again || !errors.Is(r.Err, ErrUnknown) || !uncharged(r.Err) {
			t.Errorf("outcome of %d = %v (%v), want again, ErrUnknown", i, r.Outcome, r.Err)
		}
	}
	for i, r := range apply() {
		if r.Outcome != then {
			t.Errorf("then outcome of %d = %v (%v), want %v", i, r.Outcome, r.Err, then)
		}
	}
}

// as returns the error of type E in err.
func as[E error](t testing.TB, err error) E {
	t.Helper()
	e, ok := errors.AsType[E](err)
	if !ok {
		t.Fatalf("error = %v (%T), want a %T in it", err, err, e)
	}
	return e
}

func uncharged(err error) bool {
	e, ok := errors.AsType[interface {
		error
		Uncharged() bool
	}](err)
	return ok && e.Uncharged()
}

func permanent(err error) bool {
	e, ok := errors.AsType[interface {
		error
		Permanent() bool
	}](err)
	return ok && e.Permanent()
}

// messages returns n messages with IDs m00, m01, ... and a fence each.
func messages(n int) []Message {
	ms := make([]Message, n)
	for i := range ms {
		id := fmt.Sprintf("m%02d", i)
		ms[i] = Message{ID: id, Digest: []byte(id), Fences: []Fence{{"order:" + id, 1}}}
	}
	return ms
}

func ids(ms []Message, without ...int) []string {
	out := []string{}
	for i, m := range ms {
		if !slices.Contains(without, i) {
			out = append(out, m.ID)
		}
	}
	return out
}

// A rival holds a claim in an open transaction.
type rival struct {
	end  chan error  // what its handler returns
	done chan Result // what became of it
	once sync.Once
}

// claims has a rival claim m and returns once it has. Its handler writes effect "rival".
func claims(t testing.TB, b *Inbox, m Message) *rival {
	t.Helper()
	r := &rival{end: make(chan error, 1), done: make(chan Result, 1)}
	in := make(chan struct{})
	go func() {
		r.done <- b.Apply(context.Background(), m, func(ctx context.Context, tx *sqlx.Tx) error {
			err := effect("rival")(ctx, tx)
			close(in)
			return errors.Join(err, <-r.end)
		})
	}()
	select {
	case <-in:
	case res := <-r.done:
		t.Fatalf("the rival cannot claim: %v (%v)", res.Outcome, res.Err)
	}
	t.Cleanup(func() { r.ends(t, errBoom) })
	return r
}

// ends ends the rival's transaction, unless it has ended: commit if err is nil.
func (r *rival) ends(t testing.TB, err error) {
	t.Helper()
	r.once.Do(func() {
		r.end <- err
		res := <-r.done
		if want := map[bool]Outcome{true: Applied, false: Failed}[err == nil]; res.Outcome != want {
			t.Errorf("rival: %v (%v), want %v", res.Outcome, res.Err, want)
		}
	})
}

// awaitBlocked returns when so many backends of this test wait for a lock of another.
func awaitBlocked(t testing.TB, db *sqlx.DB, want int) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		var n int
		must(t, db.Get(&n, `SELECT count(*) FROM pg_stat_activity WHERE application_name = current_setting('application_name') AND cardinality(pg_blocking_pids(pid)) > 0`))
		if n >= want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d backends are blocked, want %d", n, want)
		}
	}
}

// race has ours run against a rival that holds its claim until ours is blocked by it,
// and then ends with rivalErr.
func race(t *testing.T, db *sqlx.DB, r *rival, rivalErr error, ours func() []Result) []Result {
	t.Helper()
	done := make(chan []Result, 1)
	go func() { done <- ours() }()
	awaitBlocked(t, db, 1)
	r.ends(t, rivalErr)
	return <-done
}
