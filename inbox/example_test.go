package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"math/rand/v2"

	"github.com/jmoiron/sqlx"

	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/internal/devstack"
)

func Example() {
	ctx := context.Background()
	db, schema, done := exampleDB(ctx)
	defer done()
	if err := inbox.Migrate(ctx, db, inbox.InSchema(schema)); err != nil {
		log.Fatal(err)
	}
	db.MustExec("CREATE TEMP TABLE balance AS SELECT 100 AS cents")

	box, err := inbox.New(db, inbox.Config{Consumer: "billing", Schema: schema})
	if err != nil {
		log.Fatal(err)
	}
	pay := func(ctx context.Context, tx *sqlx.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE balance SET cents = cents - 30")
		return err
	}
	payment := inbox.Message{ID: "payment-7", Digest: []byte("30 cents"), Fences: []inbox.Fence{{Resource: "account:1", Token: 41}}}
	for range 2 { // delivered twice
		fmt.Println(box.Apply(ctx, payment, pay).Outcome)
	}

	payment.Digest = []byte("40 cents") // another payment with the ID of the first
	fmt.Println(box.Apply(ctx, payment, pay).Outcome)

	late := inbox.Message{ID: "payment-8", Fences: []inbox.Fence{{Resource: "account:1", Token: 40}}}
	fmt.Println(box.Apply(ctx, late, pay).Err)

	var cents int
	if err := db.Get(&cents, "SELECT cents FROM balance"); err != nil {
		log.Fatal(err)
	}
	fmt.Println(cents, "cents left")
	// Output:
	// applied
	// duplicate
	// conflict
	// inbox: token 40 of resource "account:1" for message "payment-8" is stale, 41 has been seen
	// 70 cents left
}

func ExampleInbox_ApplyBatch() {
	ctx := context.Background()
	db, schema, done := exampleDB(ctx)
	defer done()
	if err := inbox.Migrate(ctx, db, inbox.InSchema(schema)); err != nil {
		log.Fatal(err)
	}
	db.MustExec("CREATE TEMP TABLE balance AS SELECT 100 AS cents")
	db.MustExec("ALTER TABLE balance ADD CHECK (cents >= 0)")

	box, err := inbox.New(db, inbox.Config{Consumer: "billing", Schema: schema})
	if err != nil {
		log.Fatal(err)
	}
	ms := []inbox.Message{{ID: "pay-50"}, {ID: "pay-60"}, {ID: "pay-20"}}
	cents := []int{50, 60, 20}
	for i, res := range box.ApplyBatch(ctx, ms, func(ctx context.Context, tx *sqlx.Tx, i int) error {
		_, err := tx.ExecContext(ctx, "UPDATE balance SET cents = cents - $1", cents[i])
		return err
	}) {
		fmt.Println(ms[i].ID, res.Outcome)
	}
	var left int
	if err := db.Get(&left, "SELECT cents FROM balance"); err != nil {
		log.Fatal(err)
	}
	fmt.Println(left, "cents left")
	// Output:
	// pay-50 applied
	// pay-60 failed
	// pay-20 applied
	// 30 cents left
}

// A message that fails each time is given up. Its dead letter is written with that decision, and
// when what was wrong is mended it is driven once more.
func ExampleInbox_Redrive() {
	ctx := context.Background()
	db, schema, done := exampleDB(ctx)
	defer done()
	if err := inbox.Migrate(ctx, db, inbox.InSchema(schema)); err != nil {
		log.Fatal(err)
	}
	db.MustExec("CREATE TEMP TABLE letter (id text, reason text)")

	box, err := inbox.New(db, inbox.Config{
		Consumer: "billing", Schema: schema, Logger: slog.New(slog.DiscardHandler),
		MaxAttempts: 2,
		DeadLetter: func(ctx context.Context, tx *sqlx.Tx, d inbox.DeadLetter) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO letter VALUES ($1, $2)", d.Message.ID, d.Err.Error())
			return err
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	payment := inbox.Message{ID: "payment-7"}
	refuse := func(context.Context, *sqlx.Tx) error { return errors.New("no such account") }
	for range 3 {
		fmt.Println(box.Apply(ctx, payment, refuse).Outcome)
	}
	var reasons []string
	if err := db.Select(&reasons, "SELECT reason FROM letter"); err != nil {
		log.Fatal(err)
	}
	fmt.Println(reasons)

	pay := func(context.Context, *sqlx.Tx) error { return nil }
	fmt.Println(box.Redrive(ctx, payment, pay).Outcome)
	// Output:
	// failed
	// dead
	// duplicate
	// [inbox: handle message "payment-7": no such account]
	// applied
}

// exampleDB returns a pool of one connection, on which temporary tables live, and the
// name of a schema that does not exist yet.
func exampleDB(ctx context.Context) (*sqlx.DB, string, func()) {
	stack, err := devstack.Start(ctx, devstack.Config{Postgres: true})
	if err != nil {
		log.Fatal(err)
	}
	db := sqlx.MustConnect("postgres", stack.Parts[devstack.Postgres].URL)
	db.SetMaxOpenConns(1)
	schema := fmt.Sprintf("example_%d", rand.Uint64())
	return db, schema, func() {
		db.MustExec(`DROP SCHEMA IF EXISTS "` + schema + `" CASCADE`)
		db.Close()
		stack.Close()
	}
}
