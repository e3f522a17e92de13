package inboxfx

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	_ "github.com/lib/pq"
	"go.uber.org/fx"
	"go.uber.org/fx/fxtest"
	"go.uber.org/goleak"

	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/internal/devstack/devtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func nothing(context.Context, *sqlx.Tx) error { return nil }

func TestModule_Graph(t *testing.T) {
	use := fx.Invoke(func(*inbox.Inbox) {})
	cfg := fx.Supply(inbox.Config{Consumer: "billing"})
	db := fx.Provide(func() (*sqlx.DB, error) { return sqlx.Open("postgres", "") })
	if err := fx.ValidateApp(Module, use, cfg, db); err != nil {
		t.Error(err)
	}
	if err := fx.ValidateApp(Module, use, cfg, db, fx.Provide(slog.Default)); err != nil {
		t.Errorf("with a logger: %v", err)
	}
	if err := fx.ValidateApp(Module, use, cfg); err == nil {
		t.Error("a graph without a pool is accepted")
	}
}

func TestModule_StartsAndStops(t *testing.T) {
	db := devtest.Postgres(t)
	if err := inbox.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	var box *inbox.Inbox
	started := false
	app := fxtest.New(t, Module, fx.Supply(inbox.Config{Consumer: "billing"}, db), fx.Populate(&box),
		// A hook of whoever uses the inbox comes after its check.
		fx.Invoke(func(lc fx.Lifecycle, box *inbox.Inbox) {
			lc.Append(fx.StartHook(func(ctx context.Context) {
				started = box.Apply(ctx, inbox.Message{ID: "a"}, nothing).Outcome == inbox.Applied
			}))
		}))
	app.RequireStart()
	if !started {
		t.Error("the inbox does not work in a start hook")
	}
	if res := box.Apply(t.Context(), inbox.Message{ID: "b"}, nothing); res.Outcome != inbox.Applied {
		t.Errorf("after the start: %v (%v)", res.Outcome, res.Err)
	}
	app.RequireStop()
	if err := db.Ping(); err != nil {
		t.Errorf("the pool was closed: %v", err)
	}
}

func TestModule_Purges(t *testing.T) {
	db := devtest.Postgres(t)
	if err := inbox.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	var box *inbox.Inbox
	day := 24 * time.Hour
	app := fxtest.New(t, Module, fx.Populate(&box),
		fx.Supply(inbox.Config{Consumer: "billing"}, db, &inbox.PurgeConfig{Retention: day, TopicRetention: day, Every: time.Millisecond}))
	app.RequireStart()
	if res := box.Apply(t.Context(), inbox.Message{ID: "a"}, nothing); res.Outcome != inbox.Applied {
		t.Fatal(res.Err)
	}
	db.MustExec("UPDATE inbox SET created_at = now() - interval '2 days'")
	for left := 1; left > 0; { // for ever, if nobody purges: the test's own time-out ends it
		if err := db.Get(&left, "SELECT count(*) FROM inbox"); err != nil {
			t.Fatal(err)
		}
	}
	app.RequireStop()

	bad := fx.New(fx.NopLogger, Module, fx.Supply(inbox.Config{Consumer: "billing"}, db, &inbox.PurgeConfig{}), fx.Invoke(func(*inbox.Inbox) {}))
	if err := bad.Err(); err == nil || !strings.Contains(err.Error(), "Retention is 0s, must be at least 1m") {
		t.Errorf("error = %v, want the mistake in the configuration", err)
	}
}

func TestModule_MissingTablesEndTheStart(t *testing.T) {
	db := devtest.Postgres(t)
	reached := false
	app := fx.New(fx.NopLogger, Module, fx.Supply(inbox.Config{Consumer: "billing"}, db),
		fx.Invoke(func(lc fx.Lifecycle, _ *inbox.Inbox) {
			lc.Append(fx.StartHook(func() { reached = true }))
		}))
	err := app.Start(t.Context())
	e, ok := errors.AsType[*inbox.SchemaError](err)
	if !ok || !strings.Contains(err.Error(), "CREATE TABLE inbox_fence") {
		t.Fatalf("error of the start = %v, want the missing DDL", err)
	}
	if reached {
		t.Error("the start went on")
	}
	var tables int
	if err := db.Get(&tables, "SELECT count(*) FROM pg_class WHERE relnamespace = current_schema()::regnamespace"); err != nil || tables != 0 {
		t.Errorf("tables = %d, %v, want none: the module must not make any", tables, err)
	}
	db.MustExec(e.DDL)
	if err := app.Start(t.Context()); err != nil {
		t.Errorf("after running the DDL: %v", err)
	}
	if err := app.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestModule_BadConfigIsAnError(t *testing.T) {
	db := devtest.Postgres(t)
	app := fx.New(fx.NopLogger, Module, fx.Supply(inbox.Config{}, db), fx.Invoke(func(*inbox.Inbox) {}))
	if err := app.Err(); err == nil || !strings.Contains(err.Error(), "Consumer is") {
		t.Errorf("error = %v, want that of inbox.New", err)
	}
}

// The application's logger is used, unless the configuration has one.
func TestParams_Logger(t *testing.T) {
	mine, other := slog.New(slog.DiscardHandler), slog.New(slog.DiscardHandler)
	for _, p := range []Params{{Logger: mine}, {Config: inbox.Config{Logger: mine}, Logger: other}} {
		if got := p.config().Logger; got != mine {
			t.Errorf("logger = %p, want %p", got, mine)
		}
	}
}
