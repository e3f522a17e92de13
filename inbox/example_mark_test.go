package inbox_test

import (
	"context"
	"fmt"
	"log"

	"github.com/jmoiron/sqlx"

	"github.com/onceward/onceward/inbox"
)

// The loop that commits offsets says which are decided. From then on the row of a message
// may go before the topic forgets it.
func ExampleInbox_Mark() {
	ctx := context.Background()
	db, schema, done := exampleDB(ctx)
	defer done()
	if err := inbox.Migrate(ctx, db, inbox.InSchema(schema)); err != nil {
		log.Fatal(err)
	}
	box, err := inbox.New(db, inbox.Config{Consumer: "billing", Schema: schema})
	if err != nil {
		log.Fatal(err)
	}
	topic := [16]byte{1} // from the metadata of the cluster, or with each fetch
	deliver := func(offset int64) {
		m := inbox.Message{
			ID:       fmt.Sprint("payment-", offset),
			Position: &inbox.Position{Topic: topic, Partition: 0, Offset: offset},
		}
		fmt.Println(m.ID, box.Apply(ctx, m, func(context.Context, *sqlx.Tx) error { return nil }).Outcome)
	}
	deliver(100)
	deliver(101)
	// ... commit offset 102 to Kafka, and then:
	if err := box.Mark(ctx, []inbox.Run{{Topic: topic, Partition: 0, From: 100, Upto: 102}}); err != nil {
		log.Fatal(err)
	}
	db.MustExec("DELETE FROM " + schema + ".inbox") // as Purge does it, hours later
	deliver(100)
	deliver(102)
	// Output:
	// payment-100 applied
	// payment-101 applied
	// payment-100 duplicate
	// payment-102 applied
}
