package inbox_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/jmoiron/sqlx"

	"github.com/onceward/onceward/inbox"
)

// A client that retries a request gets the answer of the first one, and pays once.
func ExampleInbox_Answer() {
	ctx := context.Background()
	db, schema, done := exampleDB(ctx)
	defer done()
	if err := inbox.Migrate(ctx, db, inbox.InSchema(schema)); err != nil {
		log.Fatal(err)
	}
	db.MustExec("CREATE TEMP TABLE payment (id int GENERATED ALWAYS AS IDENTITY, cents int)")
	box, err := inbox.New(db, inbox.Config{Consumer: "payments", Schema: schema})
	if err != nil {
		log.Fatal(err)
	}

	pay := func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<10))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		m := inbox.Message{ID: r.Header.Get("Idempotency-Key"), Digest: body}
		res := box.Answer(r.Context(), m, func(ctx context.Context, tx *sqlx.Tx) ([]byte, error) {
			var id int
			err := tx.GetContext(ctx, &id, "INSERT INTO payment (cents) VALUES ($1::int) RETURNING id", string(body))
			return fmt.Appendf(nil, "payment %d", id), err
		})
		switch res.Outcome {
		case inbox.Applied, inbox.Duplicate:
			_, _ = w.Write(res.Answer)
		case inbox.Conflict: // another request with the key of the first
			http.Error(w, "this key was used for another request", http.StatusUnprocessableEntity)
		case inbox.Failed:
			http.Error(w, "cannot pay", http.StatusBadRequest)
		default: // Busy, Again: nothing is lost by another try
			http.Error(w, "try again", http.StatusServiceUnavailable)
		}
	}

	send := func(key, body string) {
		r := httptest.NewRequest(http.MethodPost, "/pay", strings.NewReader(body))
		r.Header.Set("Idempotency-Key", key)
		w := httptest.NewRecorder()
		pay(w, r)
		fmt.Println(w.Code, strings.TrimSpace(w.Body.String()))
	}
	send("a1", "30")
	send("a1", "30")
	send("a1", "40")
	send("b7", "lots")
	send("b7", "40")
	// Output:
	// 200 payment 1
	// 200 payment 1
	// 422 this key was used for another request
	// 400 cannot pay
	// 200 payment 2
}
