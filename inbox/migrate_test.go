package inbox

import (
	"context"
	"errors"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/onceward/onceward/internal/devstack/devtest"
)

func relations(t *testing.T, db *sqlx.DB) []string {
	t.Helper()
	names := []string{}
	must(t, db.Select(&names, "SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace ORDER BY relname"))
	return names
}

func TestMigrate_ThereAndBackWithRows(t *testing.T) {
	db := open(t)
	newest, err := migrations()
	must(t, err)
	var after [][]string // relations at each version
	for v := range len(newest) + 1 {
		must(t, Migrate(t.Context(), db, To(v)))
		after = append(after, relations(t, db))
	}
	if len(after[0]) != 0 {
		t.Errorf("version 0 has %q", after[0])
	}
	must(t, Migrate(t.Context(), db)) // nothing left to do
	m := Message{ID: "a", Digest: []byte("1"), Fences: []Fence{{"x", 1}}, Position: &Position{[16]byte{1}, 2, 3}}
	nothing := func(context.Context, *sqlx.Tx) error { return nil }
	wantOutcome(t, newBox(t, db, Config{}).Apply(t.Context(), m, nothing), Applied)
	must(t, Migrate(t.Context(), db))
	wantRows(t, db, 1)
	for v := len(newest) - 1; v >= 0; v-- {
		must(t, Migrate(t.Context(), db, To(v)))
		if got := relations(t, db); !slices.Equal(got, after[v]) {
			t.Errorf("back at version %d: %q, was %q", v, got, after[v])
		}
	}
	must(t, Migrate(t.Context(), db))
	wantOutcome(t, newBox(t, db, Config{}).Apply(t.Context(), m, nothing), Applied)
}

func TestMigrate_TenAtOnce(t *testing.T) {
	// The snapshot of REPEATABLE READ would be older than the wait for the lock.
	for _, param := range []string{"default_transaction_isolation=read committed", "default_transaction_isolation=repeatable read"} {
		t.Run(param, func(t *testing.T) {
			address := withParams(t, devtest.PostgresURL(t), param)
			errs := make([]error, 10)
			var wg sync.WaitGroup
			start := make(chan struct{})
			for i := range errs {
				db := openURL(t, address)
				must(t, db.Ping())
				wg.Go(func() {
					<-start
					errs[i] = errors.Join(Migrate(context.Background(), db), Check(context.Background(), db))
				})
			}
			close(start)
			wg.Wait()
			if err := errors.Join(errs...); err != nil {
				t.Error(err)
			}
			var versions []int
			ms, err := migrations()
			must(t, err)
			must(t, openURL(t, address).Select(&versions, "SELECT version FROM inbox_migration"))
			if len(versions) != len(ms) {
				t.Errorf("versions = %v, want each of %d once", versions, len(ms))
			}
		})
	}
}

// The wait for another migration ends with the context.
func TestMigrate_WaitEndsWithContext(t *testing.T) {
	db := open(t)
	other := db.MustBegin()
	defer other.Rollback()
	other.MustExec("SELECT pg_advisory_xact_lock($1)", int64(migrationLock))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- Migrate(ctx, db) }()
	awaitBlocked(t, db, 1)
	cancel()
	if err := <-done; err == nil {
		t.Error("it did not wait")
	}
	if got := relations(t, db); len(got) != 0 {
		t.Errorf("relations = %q, want none", got)
	}
}

func TestMigrate_AllOrNothing(t *testing.T) {
	db := open(t)
	db.MustExec("CREATE TABLE inbox_fence (other int)") // in the way of the last table
	err := Migrate(t.Context(), db)
	if state(err) != "42P07" || !strings.Contains(err.Error(), "version 1 (inbox)") {
		t.Errorf("error = %v, want 42P07 of version 1", err)
	}
	if got := relations(t, db); !slices.Equal(got, []string{"inbox_fence"}) {
		t.Errorf("relations = %q, want only what was there", got)
	}
}

func TestMigrate_NewerDatabaseIsLeftAlone(t *testing.T) {
	db := newDB(t)
	db.MustExec("INSERT INTO inbox_migration (version, name) VALUES (99, 'future')")
	before := relations(t, db)
	must(t, Migrate(t.Context(), db))
	err := Migrate(t.Context(), db, To(0))
	if err == nil || !strings.Contains(err.Error(), "has version 99") {
		t.Errorf("error = %v, want that it cannot go back from 99", err)
	}
	if got := relations(t, db); !slices.Equal(got, before) {
		t.Errorf("relations = %q, were %q", got, before)
	}
}

func TestMigrate_BadOptions(t *testing.T) {
	db := openURL(t, "postgres://x@127.0.0.1:1/x")
	for want, opt := range map[string]MigrateOption{"To is -2, must be from 0 to": To(-2), "To is 1000, must be from 0 to": To(1000), `Schema is "a b", must be`: InSchema("a b")} {
		if err := Migrate(t.Context(), db, opt); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error = %v, want %q", err, want)
		}
	}
	if err := Check(t.Context(), db, InSchema("a b")); err == nil || !strings.Contains(err.Error(), `Schema is "a b"`) {
		t.Errorf("error of Check = %v", err)
	}
}

func TestMigrate_InSchema(t *testing.T) {
	db := open(t)
	var own string
	must(t, db.Get(&own, "SELECT current_schema() "))
	schema := own[:min(len(own), 60)] + "_x"
	t.Cleanup(func() { db.MustExec(`DROP SCHEMA IF EXISTS "` + schema + `" CASCADE`) })
	if err := Check(t.Context(), db, InSchema(schema)); err == nil {
		t.Error("Check finds tables in a schema that is not there")
	}
	for range 2 { // also if the schema is there
		must(t, Migrate(t.Context(), db, InSchema(schema)))
	}
	must(t, Check(t.Context(), db, InSchema(schema)))
	if got := relations(t, db); len(got) != 0 {
		t.Errorf("relations of the search path = %q, want none", got)
	}
	nothing := func(context.Context, *sqlx.Tx, int) error { return nil }
	ms := []Message{{ID: "a"}, {ID: "b", Fences: []Fence{{"x", 1}}}}
	b := newBox(t, db, Config{Schema: schema})
	wantOutcomes(t, b.ApplyBatch(t.Context(), ms, nothing), Applied, Applied)
	wantOutcomes(t, b.ApplyBatch(t.Context(), ms, nothing), Duplicate, Duplicate)
	must(t, Migrate(t.Context(), db, InSchema(schema), To(0)))
	var left int
	must(t, db.Get(&left, "SELECT count(*) FROM pg_class WHERE relnamespace = $1::regnamespace", schema))
	if left != 0 {
		t.Errorf("%d relations are left", left)
	}
}

// Two inboxes in one schema have nothing in common, and the names of all that is made
// follow that of the table.
func TestMigrate_WithTable(t *testing.T) {
	db := open(t)
	nothing := func(context.Context, *sqlx.Tx) error { return nil }
	for _, name := range []string{"", "orders_inbox", "box"} {
		if err := Check(t.Context(), db, WithTable(name)); err == nil {
			t.Errorf("Check finds tables with the name %q that are not there", name)
		}
		for range 2 {
			must(t, Migrate(t.Context(), db, WithTable(name)))
		}
		must(t, Check(t.Context(), db, WithTable(name)))
		b := newBox(t, db, Config{Table: name})
		m := Message{ID: "a", Fences: []Fence{{"x", 1}}}
		wantOutcome(t, b.Apply(t.Context(), m, nothing), Applied)
		wantOutcome(t, b.Apply(t.Context(), m, nothing), Duplicate)
	}
	before := len(relations(t, db))
	must(t, Migrate(t.Context(), db, WithTable("box"), To(0)))
	after := relations(t, db)
	if len(after)*3 != before*2 {
		t.Errorf("%d of %d relations are left, want two thirds", len(after), before)
	}
	for _, name := range after {
		if strings.HasPrefix(name, "box") {
			t.Errorf("relation %s is left", name)
		}
	}
	must(t, Check(t.Context(), db, WithTable("orders_inbox")))
	if err := Migrate(t.Context(), db, WithTable("a b")); err == nil || !strings.Contains(err.Error(), `Table is "a b"`) {
		t.Errorf("error of Migrate = %v", err)
	}
}

// What Check looks for is what the migrations make.
func TestCheck_KnowsTheSchema(t *testing.T) {
	db := open(t)
	must(t, Migrate(t.Context(), db))
	var rows []struct{ Table, Column, Type string }
	must(t, db.Select(&rows, `SELECT c.relname AS table, a.attname AS column, format_type(a.atttypid, a.atttypmod) AS type
		FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
		WHERE c.relkind = 'r' AND c.relname <> 'inbox_migration' AND c.relnamespace = current_schema()::regnamespace`))
	made := map[string]map[string]string{}
	for _, r := range rows {
		if made[r.Table] == nil {
			made[r.Table] = map[string]string{}
		}
		made[r.Table][r.Column] = r.Type
	}
	known := map[string]map[string]string{}
	for _, tb := range tables {
		known[tb.name] = tb.columns
	}
	if !maps.EqualFunc(made, known, maps.Equal) {
		t.Errorf("made  %v\nknown %v", made, known)
	}
}

func TestCheck_NamesWhatIsMissing(t *testing.T) {
	ms, err := migrations()
	must(t, err)
	all := ms[0].up
	tests := []struct {
		name, statement string
		missing         []string
		ddl             string
	}{
		{"everything", "DROP TABLE inbox, inbox_fence, inbox_scope", []string{"table inbox_scope", "table inbox", "table inbox_fence"}, all},
		{"a table", "DROP TABLE inbox_fence", []string{"table inbox_fence"}, all},
		{"a column", "ALTER TABLE inbox DROP COLUMN fingerprint", []string{"column fingerprint of inbox (uuid)"}, ""},
		{"a type", "ALTER TABLE inbox_fence ALTER COLUMN token TYPE int", []string{"type bigint of column token of inbox_fence (it is integer)"}, ""},
		{"a unique key", "ALTER TABLE inbox DROP CONSTRAINT inbox_pkey; CREATE UNIQUE INDEX ON inbox (key) WHERE dead; CREATE INDEX ON inbox (key)", []string{"unique key (key) of inbox"}, ""},
		{"a unique key of two", "ALTER TABLE inbox_scope DROP CONSTRAINT inbox_scope_tenant_consumer_key; ALTER TABLE inbox_scope ADD UNIQUE (tenant)", []string{"unique key (tenant,consumer) of inbox_scope"}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			db := open(t)
			must(t, Migrate(t.Context(), db))
			must(t, Check(t.Context(), db))
			db.MustExec(tt.statement)
			e := as[*SchemaError](t, Check(t.Context(), db))
			if !slices.Equal(e.Missing, tt.missing) || e.DDL != tt.ddl {
				t.Errorf("missing = %q, want %q; DDL:\n%s", e.Missing, tt.missing, e.DDL)
			}
			if !strings.Contains(e.Error(), tt.missing[0]) || !strings.Contains(e.Error(), tt.ddl) {
				t.Errorf("error does not say so: %v", e)
			}
		})
	}
}

// The DDL of the error is all that an empty database needs, also in a schema.
func TestCheck_DDLIsEnough(t *testing.T) {
	db := open(t)
	var schema string
	must(t, db.Get(&schema, "SELECT current_schema()"))
	elsewhere := openURL(t, withParams(t, devtest.PostgresURL(t), "search_path=public"))
	e := as[*SchemaError](t, Check(t.Context(), elsewhere, InSchema(schema)))
	elsewhere.MustExec(e.DDL)
	must(t, Check(t.Context(), elsewhere, InSchema(schema)))
	must(t, Check(t.Context(), db))
}

// asRole returns a pool on the schema of db for a new role that may use the schema and
// what else the statements give to {role}.
func asRole(t *testing.T, db *sqlx.DB, address string, grants ...string) *sqlx.DB {
	t.Helper()
	var schema string
	must(t, db.Get(&schema, "SELECT current_schema()"))
	role := schema
	db.MustExec(`CREATE ROLE "` + role + `" LOGIN PASSWORD 'x'`)
	t.Cleanup(func() {
		db := openURL(t, address)
		db.MustExec(`DROP OWNED BY "` + role + `"`)
		db.MustExec(`DROP ROLE "` + role + `"`)
	})
	for _, g := range append([]string{"GRANT USAGE ON SCHEMA " + schema + " TO {role}"}, grants...) {
		db.MustExec(strings.ReplaceAll(g, "{role}", `"`+role+`"`))
	}
	u, err := url.Parse(address)
	must(t, err)
	u.User = url.UserPassword(role, "x")
	return openURL(t, u.String())
}

func TestCheck_RoleWithoutDDL(t *testing.T) {
	address := devtest.PostgresURL(t)
	db := migrate(t, openURL(t, address))
	app := asRole(t, db, address, "GRANT SELECT, INSERT, UPDATE, DELETE ON inbox, inbox_attempt, inbox_fence, inbox_mark, inbox_parked, inbox_purge, inbox_scope, inbox_task TO {role}",
		"GRANT INSERT ON effect TO {role}; GRANT USAGE ON effect_seq_seq TO {role}")
	if _, err := app.Exec("CREATE TABLE mine (id int)"); state(err) != "42501" {
		t.Fatalf("the role may make tables: %v", err)
	}
	must(t, Check(t.Context(), app))
	b := newBox(t, app, Config{})
	ms := messages(3)
	s := newScript(t, ms)
	s.bad[1] = fails // its claim is given back
	wantOutcomes(t, b.ApplyBatch(t.Context(), ms, s.run), Applied, Failed, Applied)
	wantOutcomes(t, b.ApplyBatch(t.Context(), ms, s.run), Duplicate, Failed, Duplicate)

	// It sees what is missing as well.
	db.MustExec("DROP TABLE inbox_fence")
	if e := as[*SchemaError](t, Check(t.Context(), app)); !slices.Equal(e.Missing, []string{"table inbox_fence"}) {
		t.Errorf("missing = %q", e.Missing)
	}
}

// The rights that Check asks for are enough, and each is needed.
func TestCheck_Rights(t *testing.T) {
	address := devtest.PostgresURL(t)
	db := migrate(t, openURL(t, address))
	app := asRole(t, db, address)
	e := as[*SchemaError](t, Check(t.Context(), app))
	if len(e.Missing) != 28 || e.Missing[0] != "right to SELECT on inbox_scope" || !strings.HasPrefix(e.DDL, "GRANT SELECT, INSERT ON inbox_scope TO ") {
		t.Errorf("missing = %q; DDL:\n%s", e.Missing, e.DDL)
	}
	db.MustExec(e.DDL)
	must(t, Check(t.Context(), app))

	ms := messages(3)
	try := func() error {
		db.MustExec("TRUNCATE inbox, inbox_attempt, inbox_fence, inbox_mark, inbox_parked, inbox_purge, inbox_scope, inbox_task")
		b := newBox(t, app, Config{MaxAttempts: 9})
		var errs []error
		for n := range 3 {
			bad := n < 2
			got := b.ApplyBatch(t.Context(), ms, func(_ context.Context, _ *sqlx.Tx, i int) error {
				if i == 1 && bad {
					return errBoom
				}
				return nil
			})
			for i, r := range got {
				if i != 1 || !bad {
					errs = append(errs, r.Err)
				}
			}
		}
		if err := b.Bury(t.Context(), Message{ID: "buried"}, errBoom).Err; state(err) != "" {
			errs = append(errs, err)
		}
		// What is done is written down for as long as the lease lasts.
		parks := newBox(t, app, Config{MaxAttempts: 1, ParkKey: true})
		if r := parks.Bury(t.Context(), keyed("dead", "x", 1), errBoom); r.Outcome != Dead {
			errs = append(errs, r.Err)
		}
		if r := parks.Apply(t.Context(), keyed("waits", "x", 1), fails); r.Outcome != Parked {
			errs = append(errs, r.Err)
		}
		_, err := parks.Unpark(t.Context(), Fence{"x", 1}, func(context.Context, *sqlx.Tx, ParkedMessage) error { return nil })
		errs = append(errs, err)
		tasks, err := NewTasks(b, TasksConfig{Unknown: Retry, Lease: time.Second})
		must(t, err)
		defer tasks.Close()
		errs = append(errs, b.Answer(t.Context(), Message{ID: "answer"}, func(context.Context, *sqlx.Tx) ([]byte, error) { return []byte("x"), nil }).Err)
		errs = append(errs, tasks.Do(t.Context(), Message{ID: "task"}, func(context.Context, Task) error { return nil }).Err)
		_, err = b.Forget(t.Context(), ms[0].ID)
		errs = append(errs, err, b.Mark(t.Context(), []Run{{[16]byte{1}, 0, 0, 1}}))
		cfg := PurgeConfig{Retention: day, TopicRetention: day}.withDefaults()
		errs = append(errs, b.rowWalk(cfg).walk(t.Context()), b.fenceWalk(cfg).walk(t.Context()))
		return errors.Join(errs...)
	}
	must(t, try())
	for _, grant := range strings.Split(strings.TrimSpace(e.DDL), "\n") {
		rights, rest, _ := strings.Cut(strings.TrimPrefix(grant, "GRANT "), " ON ")
		for _, right := range strings.Split(rights, ", ") {
			on := right + " ON " + rest
			db.MustExec("REVOKE " + strings.Replace(on, " TO ", " FROM ", 1))
			if err := try(); state(err) != "42501" {
				t.Errorf("without %s: %v, want 42501", on, err)
			}
			if err := Check(t.Context(), app); err == nil {
				t.Errorf("without %s Check finds nothing", on)
			}
			db.MustExec("GRANT " + on)
		}
	}
}

func TestCheck_DatabaseGone(t *testing.T) {
	err := Check(t.Context(), openURL(t, "postgres://x@127.0.0.1:1/x?sslmode=disable"))
	if e, ok := errors.AsType[*SchemaError](err); err == nil || ok {
		t.Errorf("error = %v (%v), want one that is no SchemaError", err, e)
	}
}

// What the code relies on is held by the schema.
func TestSchema_Constraints(t *testing.T) {
	db := newDB(t)
	const a, b = "'00000000-0000-0000-0000-00000000000a'", "'00000000-0000-0000-0000-00000000000b'"
	db.MustExec("INSERT INTO inbox_scope (tenant, consumer) VALUES ('', 'x')")
	db.MustExec("INSERT INTO inbox (key, scope, id) VALUES (" + a + ", 1, 'a')")
	db.MustExec("INSERT INTO inbox_fence (resource, token) VALUES (" + a + ", 1)")
	db.MustExec("INSERT INTO inbox_mark (scope, topic, part, first, next, seen, ripe) VALUES (1, " + a + ", 0, 5, 7, 5, 5)")
	db.MustExec("INSERT INTO inbox_purge (scope) VALUES (1)")
	for _, tt := range []struct{ statement, want string }{
		{"INSERT INTO inbox_scope (tenant, consumer) VALUES ('', 'x')", "23505"},
		{"INSERT INTO inbox_scope (tenant, consumer) VALUES ('', '')", "23514"},
		{"INSERT INTO inbox_scope (consumer) VALUES ('y')", "23502"},
		{"INSERT INTO inbox_scope (tenant) VALUES ('y')", "23502"},
		{"INSERT INTO inbox_scope (id, tenant, consumer) VALUES (7, '', 'y')", "428C9"},
		{"INSERT INTO inbox (key, scope, id) VALUES (" + a + ", 2, 'b')", "23505"},
		{"INSERT INTO inbox (scope, id) VALUES (1, 'b')", "23502"},
		{"INSERT INTO inbox (key, id) VALUES (" + b + ", 'b')", "23502"},
		{"INSERT INTO inbox (key, scope) VALUES (" + b + ", 1)", "23502"},
		{"INSERT INTO inbox (key, scope, id, created_at) VALUES (" + b + ", 1, 'b', NULL)", "23502"},
		{"INSERT INTO inbox (key, scope, id, dead) VALUES (" + b + ", 1, 'b', NULL)", "23502"},
		{"INSERT INTO inbox (key, scope, id, topic, part) VALUES (" + b + ", 1, 'b', " + a + ", 1)", "23514"},
		{"INSERT INTO inbox (key, scope, id, off) VALUES (" + b + ", 1, 'b', 1)", "23514"},
		{"INSERT INTO inbox (key, scope, id, topic, part, off) VALUES (" + b + ", 1, 'b', " + a + ", -1, 1)", "23514"},
		{"INSERT INTO inbox (key, scope, id, topic, part, off) VALUES (" + b + ", 1, 'b', " + a + ", 1, -1)", "23514"},
		{"INSERT INTO inbox (key, scope, id, topic, part, off) VALUES (" + b + ", 1, 'b', " + a + ", 1, 1)", ""},
		{"INSERT INTO inbox_attempt (key, scope, attempts, started, id, last) VALUES (" + a + ", 1, -1, 0, '', '')", "23514"},
		{"INSERT INTO inbox_attempt (key, scope, attempts, started, id, last) VALUES (" + a + ", 1, 0, -1, '', '')", "23514"},
		{"INSERT INTO inbox_attempt (key, scope, attempts, started, id, last) VALUES (" + a + ", 1, 0, 0, '', '')", ""},
		{"INSERT INTO inbox_attempt (key, scope, attempts, started, id, last) VALUES (" + a + ", 1, 0, 0, '', '')", "23505"},
		{"INSERT INTO inbox_parked (resource, key, scope, dead, name, id, message) VALUES (" + a + ", " + a + ", 1, false, '', '', NULL)", "23502"},
		{"INSERT INTO inbox_fence (resource, token) VALUES (" + a + ", 1)", "23505"},
		{"INSERT INTO inbox_fence (resource, token) VALUES (" + b + ", 0)", "23514"},
		{"INSERT INTO inbox_fence (token) VALUES (1)", "23502"},
		{"INSERT INTO inbox_fence (resource) VALUES (" + b + ")", "23502"},
		{"INSERT INTO inbox_fence (resource, token, parked) VALUES (" + b + ", 1, NULL)", "23502"},
		{"INSERT INTO inbox_mark (scope, topic, part, first, next, seen, ripe) VALUES (1, " + a + ", 0, 5, 9, 5, 5)", "23505"},
		{"INSERT INTO inbox_mark (scope, topic, part, first, next, seen, ripe) VALUES (1, " + a + ", 0, 9, 9, 9, 9)", "23514"},
		{"INSERT INTO inbox_mark (scope, topic, part, first, next, seen, ripe) VALUES (1, " + a + ", 0, -1, 9, 5, 5)", "23514"},
		{"INSERT INTO inbox_mark (scope, topic, part, first, next, seen, ripe) VALUES (1, " + a + ", -1, 5, 9, 5, 5)", "23514"},
		{"INSERT INTO inbox_mark (scope, topic, part, first, next, seen, ripe) VALUES (1, " + a + ", 0, 8, 9, 8, 10)", "23514"},
		{"INSERT INTO inbox_mark (scope, topic, part, first, next, seen, ripe) VALUES (1, " + a + ", 0, 8, 9, 10, 8)", "23514"},
		{"INSERT INTO inbox_mark (topic, part, first, next, seen, ripe) VALUES (" + a + ", 0, 8, 9, 8, 8)", "23502"},
		{"INSERT INTO inbox_purge (scope) VALUES (1)", "23505"},
		{"INSERT INTO inbox_purge (scope, page) VALUES (2, -1)", "23514"},
	} {
		if _, err := db.Exec(tt.statement); state(err) != tt.want || tt.want == "" && err != nil {
			t.Errorf("%s: %v, want SQLSTATE %q", tt.statement, err, tt.want)
		}
	}
}
