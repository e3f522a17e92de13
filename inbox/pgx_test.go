package inbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jmoiron/sqlx"

	"github.com/onceward/onceward/internal/devstack/devtest"
)

// onPgx returns a migrated database, opened with pgx.
func onPgx(t testing.TB, params ...string) *sqlx.DB {
	t.Helper()
	return migrate(t, openWith(t, "pgx", withParams(t, devtest.PostgresURL(t), params...)))
}

// What is prepared on a connection is what the application allows: behind a PgBouncer in
// transaction mode, nothing may be.
func TestPgx_Prepared(t *testing.T) {
	for mode, want := range map[string]bool{"cache_statement": true, "exec": false, "simple_protocol": false, "cache_describe": false} {
		t.Run(mode, func(t *testing.T) {
			db := onPgx(t, "default_query_exec_mode="+mode)
			db.SetMaxOpenConns(1)
			b := newBox(t, db, Config{})
			for i := range 3 {
				m := Message{ID: fmt.Sprint(i), Digest: []byte("x"), Fences: []Fence{{"r", 1}}}
				wantOutcome(t, b.Apply(t.Context(), m, effect(m.ID)), Applied)
			}
			var names []string
			must(t, db.Select(&names, `SELECT statement FROM pg_prepared_statements WHERE name LIKE 'onceward%'`))
			if got := len(names) > 0; got != want {
				t.Errorf("prepared = %q, want some: %v", names, want)
			}
			claims := 0
			for _, s := range names {
				claims += strings.Count(s, "set_config")
			}
			if want && claims != 3 { // one claim, which sets three
				t.Errorf("%d settings in prepared statements, want 3: the claim is prepared once", claims)
			}
		})
	}
}

// A session that has lost what was prepared in it heals at the next try.
func TestPgx_PreparedIsLost(t *testing.T) {
	db := onPgx(t)
	db.SetMaxOpenConns(1)
	b := newBox(t, db, Config{})
	wantOutcome(t, b.Apply(t.Context(), Message{ID: "a"}, effect("a")), Applied)
	db.MustExec("DEALLOCATE ALL")
	res := b.Apply(t.Context(), Message{ID: "b"}, func(context.Context, *sqlx.Tx) error { return nil })
	wantOutcome(t, res, Again)
	if state(res.Err) != noStatement || !uncharged(res.Err) {
		t.Errorf("error = %v, want %s: the test shows nothing", res.Err, noStatement)
	}
	wantOutcome(t, b.Apply(t.Context(), Message{ID: "b"}, func(context.Context, *sqlx.Tx) error { return nil }), Applied)
}

// Tables that change under a prepared claim do not harm it.
func TestPgx_TablesChange(t *testing.T) {
	db := onPgx(t)
	db.SetMaxOpenConns(1)
	b := newBox(t, db, Config{})
	for i, ddl := range []string{
		"SELECT 1",
		"ALTER TABLE inbox ADD COLUMN note text",
		"ALTER TABLE inbox_fence ALTER COLUMN parked DROP NOT NULL",
		"CREATE INDEX ON inbox (off)",
		"ALTER TABLE inbox RENAME TO old; CREATE TABLE inbox (LIKE old INCLUDING ALL)",
	} {
		db.MustExec(ddl)
		m := Message{ID: fmt.Sprint(i), Fences: []Fence{{"r", 1}}}
		wantOutcome(t, b.Apply(t.Context(), m, effect(m.ID)), Applied)
	}
}

// A handler that ends the transaction by SQL is found out, though the server says yes to
// a COMMIT outside of one.
func TestPgx_EndedIsNotCommitted(t *testing.T) {
	db := onPgx(t)
	b := newBox(t, db, Config{})
	for _, statement := range []string{"ROLLBACK", "COMMIT"} {
		res := b.Apply(t.Context(), Message{ID: statement}, func(ctx context.Context, tx *sqlx.Tx) error {
			must(t, effect(statement)(ctx, tx))
			_, err := tx.ExecContext(ctx, statement)
			return err
		})
		wantOutcome(t, res, Failed)
		if !errors.Is(res.Err, ErrEnded) {
			t.Errorf("after %s: error = %v, want ErrEnded", statement, res.Err)
		}
	}
}

// The pool's own limits hold for transactions whose BEGIN goes with the claim.
func TestPgx_PoolOfOne(t *testing.T) {
	db := onPgx(t)
	db.SetMaxOpenConns(1)
	b := newBox(t, db, Config{})
	s := newScript(t, messages(20))
	s.bad[3], s.bad[9] = fails, breaks
	s.apply(b, db, map[int]Outcome{3: Failed, 9: Failed})
	if in := db.Stats().InUse; in != 0 {
		t.Errorf("%d connections in use, want none", in)
	}
}

// Settings of the application's sqlx.DB hold for the transaction that handlers get.
func TestPgx_KeepsMapper(t *testing.T) {
	db := onPgx(t)
	db.MapperFunc(strings.ToUpper)
	res := newBox(t, db.Unsafe(), Config{}).Apply(t.Context(), Message{ID: "a"}, func(ctx context.Context, tx *sqlx.Tx) error {
		var row struct{ N int }
		if err := tx.GetContext(ctx, &row, `SELECT 7 AS "N", 1 AS nobody`); err != nil {
			return err
		}
		if row.N != 7 || tx.DriverName() != "pgx" {
			t.Errorf("row = %+v, driver %q, want 7, pgx", row, tx.DriverName())
		}
		return nil
	})
	wantOutcome(t, res, Applied)
}
