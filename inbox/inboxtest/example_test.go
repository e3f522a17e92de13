package inboxtest_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"math/rand/v2"
	"net/url"

	"github.com/jmoiron/sqlx"

	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/inbox/inboxtest"
	"github.com/onceward/onceward/internal/devstack"
)

// A handler is proven at each point at which its process may die.
func ExampleCrashAt() {
	ctx := context.Background()
	db, box, done := exampleInbox(ctx)
	defer done()
	pay := func(ctx context.Context, tx *sqlx.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE balance SET cents = cents - 30")
		return err
	}
	for _, point := range inboxtest.Points() {
		m := inbox.Message{ID: "payment " + point.String()}
		first := box.Apply(inboxtest.CrashAt(ctx, point), m, pay)
		if !errors.Is(first.Err, inboxtest.ErrCrashed) {
			log.Fatal("it lives: ", first.Err)
		}
		second := box.Apply(ctx, m, pay) // the message is delivered again
		var cents int
		if err := db.Get(&cents, "SELECT cents FROM balance"); err != nil {
			log.Fatal(err)
		}
		fmt.Printf("died %v: %v, then %v, %d cents left\n", point, first.Outcome, second.Outcome, cents)
	}
	// Output:
	// died after claim: again, then applied, 70 cents left
	// died after handler: again, then applied, 40 cents left
	// died before commit: again, then applied, 10 cents left
	// died after commit: again, then duplicate, -20 cents left
}

// exampleInbox returns an inbox in a new schema, and its database with a balance of 100
// cents.
func exampleInbox(ctx context.Context) (*sqlx.DB, *inbox.Inbox, func()) {
	stack, err := devstack.Start(ctx, devstack.Config{Postgres: true})
	if err != nil {
		log.Fatal(err)
	}
	schema := fmt.Sprintf("example_%d", rand.Uint64())
	address, err := url.Parse(stack.Parts[devstack.Postgres].URL)
	if err != nil {
		log.Fatal(err)
	}
	query := address.Query()
	query.Set("search_path", schema)
	address.RawQuery = query.Encode()
	db := sqlx.MustConnect("postgres", address.String())
	if err := inbox.Migrate(ctx, db, inbox.InSchema(schema)); err != nil {
		log.Fatal(err)
	}
	db.MustExec("CREATE TABLE balance AS SELECT 100 AS cents")
	box, err := inbox.New(db, inbox.Config{Consumer: "billing", Schema: schema})
	if err != nil {
		log.Fatal(err)
	}
	return db, box, func() {
		db.MustExec(`DROP SCHEMA "` + schema + `" CASCADE`)
		db.Close()
		stack.Close()
	}
}
