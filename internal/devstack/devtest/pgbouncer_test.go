package devtest_test

import (
	"context"
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/onceward/onceward/internal/devstack/devtest"
)

// Two databases have their own settings, and a client's connection is no session: its
// transactions go through whatever connection is free.
func TestPgBouncerURL(t *testing.T) {
	var dbs []*sqlx.DB
	for range 2 {
		address := devtest.PostgresURL(t)
		db, err := sqlx.Connect("postgres", devtest.PgBouncerURL(t, address+"&deadlock_timeout=77ms"))
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		db.MustExec("CREATE TABLE things (id int)") // each has a schema of its own
		var timeout string
		if err := db.Get(&timeout, "SHOW deadlock_timeout"); err != nil || timeout != "77ms" {
			t.Errorf("deadlock_timeout = %q, %v, want that of the address", timeout, err)
		}
		dbs = append(dbs, db)
	}

	// Open two of PgBouncer's connections, so that it has a choice.
	a, b := dbs[0].MustBegin(), dbs[0].MustBegin()
	a.MustExec("SELECT 1")
	b.MustExec("SELECT 1")
	a.Rollback()
	b.Rollback()
	conn, err := dbs[0].Connx(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	backends := map[int]bool{}
	for range 4 {
		var pid int
		if err := conn.GetContext(t.Context(), &pid, "SELECT pg_backend_pid()"); err != nil {
			t.Fatal(err)
		}
		backends[pid] = true
	}
	if len(backends) < 2 {
		t.Errorf("one backend serves all transactions: this is no transaction mode")
	}
}
