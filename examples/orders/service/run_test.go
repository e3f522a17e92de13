package service

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/devstack/devtest"
	"github.com/onceward/onceward/middleware"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// real is a configuration of servers that are there. The schema is not migrated.
func real(t *testing.T) Config {
	t.Helper()
	return Config{
		Postgres:  devtest.PostgresURL(t),
		Redis:     devtest.RedisURL(t),
		Brokers:   devtest.Kafka(t),
		Payments:  "http://127.0.0.1:1",
		Prefix:    "orders-test-" + t.Name(),
		ScanEvery: 10 * time.Millisecond,
	}
}

func TestRun_SchemaNotMigrated(t *testing.T) {
	err := Run(t.Context(), real(t), Hooks{}, quiet)
	if !errors.Is(err, ErrSchema) || !strings.Contains(err.Error(), "run: orders migrate") {
		t.Errorf("error = %v, want %v", err, ErrSchema)
	}
}

func TestRun_BadConfig(t *testing.T) {
	if err := Run(t.Context(), Config{}, Hooks{}, quiet); err == nil || !strings.Contains(err.Error(), "Postgres is") {
		t.Errorf("error = %v, want one that names Postgres", err)
	}
}

func TestRun_UnreachableServers(t *testing.T) {
	for _, tt := range []struct {
		want  string // in the error
		spoil func(c *Config)
	}{
		{"Postgres does not answer", func(c *Config) { c.Postgres = "postgres://nobody@127.0.0.1:1/none?sslmode=disable" }},
		{"Redis does not answer", func(c *Config) { c.Redis = "redis://127.0.0.1:1" }},
	} {
		t.Run(tt.want, func(t *testing.T) {
			cfg := real(t)
			migrate(t, cfg)
			tt.spoil(&cfg)
			if err := Run(t.Context(), cfg, Hooks{}, quiet); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error = %v, want %q in it", err, tt.want)
			}
		})
	}
}

func migrate(t *testing.T, cfg Config) {
	t.Helper()
	db, err := OpenDB(cfg.Postgres, "test")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for range 2 { // the second time there is nothing to do
		if err := Migrate(t.Context(), db); err != nil {
			t.Fatal(err)
		}
	}
	db.MustExec(`INSERT INTO periods (id) VALUES ('p')`)
}

// An order that is overdue is closed, from the scan job to the inbox, and the service
// stops when it is told to.
func TestRun_ClosesOverdueOrders(t *testing.T) {
	cfg := real(t)
	migrate(t, cfg)
	b := newBank(t)
	cfg.Payments = b.client.url
	client, err := kgo.NewClient(kgo.SeedBrokers(cfg.Brokers...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	made, err := kadm.NewClient(client).CreateTopics(t.Context(), 2, 1, nil, "orders.timeout", "orders.timeout.retry")
	if err == nil {
		err = made.Error()
	}
	if err != nil {
		t.Fatal(err)
	}
	db, err := OpenDB(cfg.Postgres, "test")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	place(t, db, 1, 2, 3)

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	decided := make(chan middleware.Event, 10) // more than there are events
	ended := make(chan error, 1)
	go func() {
		ended <- Run(ctx, cfg, Hooks{Decided: func(e middleware.Event) { decided <- e }}, quiet)
	}()
	for range 3 {
		select {
		case e := <-decided:
			if e.Err != nil {
				t.Error(e.Err)
			}
		case err := <-ended:
			t.Fatalf("the service ended: %v", err)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if got := count(t, db, "SELECT count(*) FROM orders WHERE state = 'closed'"); got != 3 {
		t.Errorf("%d orders are closed, want 3", got)
	}
}
