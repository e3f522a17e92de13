package inboxtest

import (
	"context"
	"errors"
	"slices"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib" // driver "pgx"
	"github.com/jmoiron/sqlx"
	_ "github.com/lib/pq"
	"go.uber.org/goleak"

	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/internal/devstack/devtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newDB returns a pool on a database with the inbox's tables.
func newDB(t *testing.T) *sqlx.DB {
	t.Helper()
	return openDB(t, "postgres", devtest.PostgresURL(t))
}

func openDB(t *testing.T, driver, address string) *sqlx.DB {
	t.Helper()
	db, err := sqlx.Open(driver, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	if err := inbox.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	return db
}

func newInbox(db *sqlx.DB, cfg inbox.Config) (Inbox, error) { return inbox.New(db, cfg) }

func TestInbox(t *testing.T) { Run(t, newDB, newInbox) }

// Behind a pooler that gives each transaction another connection.
func TestInbox_PgBouncer(t *testing.T) {
	Run(t, func(t *testing.T) *sqlx.DB {
		return openDB(t, "postgres", devtest.PgBouncerURL(t, devtest.PostgresURL(t)))
	}, newInbox)
}

func TestInbox_Pgx(t *testing.T) {
	Run(t, func(t *testing.T) *sqlx.DB { return openDB(t, "pgx", devtest.PostgresURL(t)) }, newInbox)
}

// asSets lets ApplySet do the work of ApplyBatch: what became of a message is the same.
type asSets struct{ *inbox.Inbox }

func (s asSets) ApplyBatch(ctx context.Context, ms []inbox.Message, fn func(ctx context.Context, tx *sqlx.Tx, i int) error) []inbox.Result {
	return s.ApplySet(ctx, ms, func(ctx context.Context, tx *sqlx.Tx, is []int) []error {
		errs := make([]error, len(is))
		for n, i := range is {
			errs[n] = fn(ctx, tx, i)
		}
		return errs
	})
}

func TestInbox_ApplySet(t *testing.T) {
	Run(t, newDB, func(db *sqlx.DB, cfg inbox.Config) (Inbox, error) {
		b, err := inbox.New(db, cfg)
		return asSets{b}, err
	})
}

// A hook sees all points, once for each transaction, with the context of the call.
func TestAt(t *testing.T) {
	type key struct{}
	b, err := inbox.New(newDB(t), inbox.Config{Consumer: "test"})
	if err != nil {
		t.Fatal(err)
	}
	var seen []Point
	ctx := At(context.WithValue(t.Context(), key{}, "here"), func(ctx context.Context, p Point) error {
		if ctx.Value(key{}) != "here" {
			t.Errorf("%v: it has another context", p)
		}
		seen = append(seen, p)
		return nil
	})
	nothing := func(context.Context, *sqlx.Tx) error { return nil }
	for range 2 { // nothing is fresh the second time
		if r := b.Apply(ctx, inbox.Message{ID: "a"}, nothing); !r.Outcome.Decided() {
			t.Fatal(r)
		}
	}
	if !slices.Equal(seen, Points()) {
		t.Errorf("points = %v, want %v", seen, Points())
	}
}

// The first transaction dies, later ones under the same context live.
func TestCrashAt_Once(t *testing.T) {
	b, err := inbox.New(newDB(t), inbox.Config{Consumer: "test"})
	if err != nil {
		t.Fatal(err)
	}
	nothing := func(context.Context, *sqlx.Tx) error { return nil }
	ctx := CrashAt(t.Context(), BeforeCommit)
	if r := b.Apply(ctx, inbox.Message{ID: "a"}, nothing); r.Outcome != inbox.Again || !errors.Is(r.Err, ErrCrashed) {
		t.Errorf("%v (%v), want again, ErrCrashed", r.Outcome, r.Err)
	}
	if r := b.Apply(ctx, inbox.Message{ID: "a"}, nothing); r.Outcome != inbox.Applied {
		t.Errorf("then %v (%v), want applied", r.Outcome, r.Err)
	}
}
