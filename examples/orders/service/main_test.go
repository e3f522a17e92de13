package service

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/onceward/onceward/internal/devstack/devtest"
	"github.com/onceward/onceward/reentrant"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var quiet = slog.New(slog.DiscardHandler)

// migrated returns a database with the schema and a period of the books.
func migrated(t *testing.T) *sqlx.DB {
	t.Helper()
	db := devtest.Postgres(t)
	if err := Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	db.MustExec(`INSERT INTO periods (id) VALUES ('p')`)
	return db
}

// place places unpaid orders whose deadline is over.
func place(t *testing.T, db *sqlx.DB, ids ...int64) {
	t.Helper()
	for _, id := range ids {
		db.MustExec(`INSERT INTO orders (id, sku, qty, amount, period, deadline) VALUES ($1, 's', 2, 100, 'p', 'epoch'::timestamptz + interval '7 seconds')`, id)
	}
}

func count(t *testing.T, db *sqlx.DB, query string) (n int) {
	t.Helper()
	if err := db.Get(&n, query); err != nil {
		t.Fatal(err)
	}
	return n
}

// locker returns a locker on keys of its own.
func newLocker(t *testing.T) *reentrant.Locker {
	t.Helper()
	l, err := reentrant.New(devtest.Redis(t), reentrant.Config{Prefix: "orders-test-" + t.Name(), Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// A bank is a payment service that keeps what it was asked.
type bank struct {
	client *Payments

	mu     sync.Mutex // guards all below
	asked  []string
	refuse string // a key that gets an error
}

func newBank(t *testing.T) *bank {
	b := &bank{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := new(strings.Builder)
		_, _ = io.Copy(body, r.Body)
		b.mu.Lock()
		defer b.mu.Unlock()
		b.asked = append(b.asked, body.String())
		if b.refuse != "" && strings.Contains(body.String(), b.refuse) {
			http.Error(w, "closed for today", http.StatusServiceUnavailable)
			return
		}
		w.Write([]byte(`{"payment": "p-1"}`))
	}))
	t.Cleanup(server.Close)
	b.client = NewPayments(Config{Payments: server.URL, Name: "test"})
	t.Cleanup(b.client.Close)
	return b
}

func (b *bank) calls() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.asked)
}
