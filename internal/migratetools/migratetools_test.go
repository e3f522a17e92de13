package migratetools

import (
	"errors"
	"io/fs"
	"os"
	"testing"

	"ariga.io/atlas/sql/migrate"
	"ariga.io/atlas/sql/postgres"
	gomigrate "github.com/golang-migrate/migrate/v4"
	gopostgres "github.com/golang-migrate/migrate/v4/database/postgres"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/jmoiron/sqlx"
	"github.com/pressly/goose/v3"

	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/internal/devstack/devtest"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func export(t *testing.T, tool inbox.Tool) fs.FS {
	t.Helper()
	dir, err := inbox.Export(tool, "box")
	must(t, err)
	return dir
}

// isThere asks whether all is there that the inbox needs.
func isThere(t *testing.T, db *sqlx.DB) {
	t.Helper()
	must(t, inbox.Check(t.Context(), db, inbox.WithTable("box")))
}

// isGone asks whether the tool took back all that it had made, but for its own table.
func isGone(t *testing.T, db *sqlx.DB) {
	t.Helper()
	var left []string
	must(t, db.Select(&left, "SELECT tablename FROM pg_tables WHERE schemaname = current_schema() AND tablename LIKE 'box%'"))
	if len(left) > 0 {
		t.Errorf("tables %q are left", left)
	}
}

func TestGoose(t *testing.T) {
	db := devtest.Postgres(t)
	p, err := goose.NewProvider(goose.DialectPostgres, db.DB, export(t, inbox.Goose))
	must(t, err)
	_, err = p.Up(t.Context())
	must(t, err)
	isThere(t, db)
	_, err = p.DownTo(t.Context(), 0)
	must(t, err)
	isGone(t, db)
}

func TestGolangMigrate(t *testing.T) {
	db := devtest.Postgres(t)
	source, err := iofs.New(export(t, inbox.GolangMigrate), ".")
	must(t, err)
	conn, err := db.Conn(t.Context())
	must(t, err)
	target, err := gopostgres.WithConnection(t.Context(), conn, &gopostgres.Config{})
	must(t, err)
	m, err := gomigrate.NewWithInstance("iofs", source, "postgres", target)
	must(t, err)
	must(t, m.Up())
	isThere(t, db)
	must(t, m.Down())
	isGone(t, db)
	ofSource, ofTarget := m.Close()
	must(t, errors.Join(ofSource, ofTarget))
}

// Atlas refuses a directory whose sum is not that of its files.
func TestAtlas(t *testing.T) {
	db := devtest.Postgres(t)
	path := t.TempDir()
	must(t, os.CopyFS(path, export(t, inbox.Atlas)))
	dir, err := migrate.NewLocalDir(path)
	must(t, err)
	must(t, migrate.Validate(dir))
	driver, err := postgres.Open(db.DB)
	must(t, err)
	run, err := migrate.NewExecutor(driver, dir, migrate.NopRevisionReadWriter{}, migrate.WithAllowDirty(true)) // the schema of the test is there
	must(t, err)
	must(t, run.ExecuteN(t.Context(), 0))
	isThere(t, db)

	must(t, os.WriteFile(path+"/0001_inbox.sql", []byte("SELECT 1;"), 0o600))
	if err := migrate.Validate(dir); err == nil {
		t.Error("a changed file is not found: the sum was not compared")
	}
}
