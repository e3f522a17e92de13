package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strconv"
	"sync/atomic"

	"github.com/jmoiron/sqlx"
	_ "github.com/lib/pq"
	"github.com/onceward/onceward/bench/internal/compare"
	"github.com/onceward/onceward/bench/internal/drive"
	"github.com/onceward/onceward/inbox"
)

// Drivers, by the names that they have in database/sql.
const (
	libPQ = "postgres"
	pgx   = "pgx"
)

// driverNames are their names here.
var driverNames = map[string]string{libPQ: "pq", pgx: "pgx"}

// nOrders is how many orders a world has. Its callers share them out.
const nOrders = 16384

const worldSQL = `
CREATE TABLE orders (
  id     bigint PRIMARY KEY,
  state  text NOT NULL DEFAULT 'open',
  closed bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 70);
CREATE TABLE ledger (
  message  text NOT NULL, -- not unique: a message that takes effect twice must be seen
  order_id bigint NOT NULL,
  amount   int NOT NULL CHECK (amount > 0)
);
CREATE TABLE seen (
  consumer   text NOT NULL,
  message_id text NOT NULL,
  at         timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (consumer, message_id)
);`

// A world is a schema with the tables of the effect and of an inbox, and a pool of
// connections to it.
type world struct {
	schema string
	db     *sqlx.DB
	box    *inbox.Inbox
	grants atomic.Int64
	done   int64            // messages, of all that was measured
	rows   map[string]int64 // of the tables that tell of messages
}

// newWorld makes a world that connects with a driver, conns times at most.
func (b *bench) newWorld(ctx context.Context, driver string, conns int, cfg inbox.Config) (_ *world, err error) {
	b.schemas++
	w := &world{schema: "world" + strconv.Itoa(b.schemas), rows: map[string]int64{}}
	u, err := url.Parse(b.postgres)
	if err != nil {
		return nil, err
	}
	q := u.Query()
	q.Set("search_path", w.schema)
	u.RawQuery = q.Encode()
	if w.db, err = sqlx.ConnectContext(ctx, driver, u.String()); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.db.Close())
		}
	}()
	w.db.SetMaxOpenConns(conns)
	w.db.SetMaxIdleConns(conns)
	if err := inbox.Migrate(ctx, w.db, inbox.InSchema(w.schema)); err != nil {
		return nil, err
	}
	if _, err := w.db.ExecContext(ctx, worldSQL); err != nil {
		return nil, err
	}
	if _, err := w.db.ExecContext(ctx, `INSERT INTO orders (id) SELECT generate_series(0, $1 - 1)`, nOrders); err != nil {
		return nil, err
	}
	if _, err := w.db.ExecContext(ctx, `ANALYZE orders`); err != nil {
		return nil, err
	}
	cfg.Consumer = "bench"
	cfg.Logger = slog.New(slog.DiscardHandler)
	w.box, err = inbox.New(w.db, cfg)
	return w, err
}

// drive lets callers repeat op, and looks at what came of it. op returns how many
// messages it applied; each of them must have left a row in the table named by rows, if
// any. Tables are not emptied, for then the server would make all plans anew.
func (w *world) drive(ctx context.Context, b *bench, callers int, rows string, op drive.Op) (compare.Sample, error) {
	before := b.serverCPU()
	r, err := drive.Run(ctx, callers, b.window, op)
	used := b.serverCPU() - before
	if err != nil {
		return nil, err
	}
	if r.Stuck > 0 {
		return nil, fmt.Errorf("%d callers did not come back", r.Stuck)
	}
	if err := w.check(ctx, int64(r.Did), rows); err != nil {
		return nil, err
	}
	return compare.Sample{
		perSecond: r.Rate,
		allocs:    r.Allocs,
		clientCPU: float64(r.CPU.Microseconds()) / float64(r.Did),
		serverCPU: float64(used.Microseconds()) / float64(r.Did),
	}, nil
}

// Metrics of a rate.
const (
	perSecond = "messages/s"
	allocs    = "allocs"    // of the client, for each message
	clientCPU = "client us" // CPU time for each message
	serverCPU = "servers us"
)

// check fails unless the tables tell of exactly so many messages more than at the last
// time, each of them once.
func (w *world) check(ctx context.Context, applied int64, rows string) error {
	var got struct{ Ledger, Messages, Closed int64 }
	if err := w.db.GetContext(ctx, &got, `
		SELECT (SELECT count(*) FROM ledger) AS ledger, (SELECT count(DISTINCT message) FROM ledger) AS messages,
		  (SELECT coalesce(sum(closed), 0) FROM orders) AS closed`); err != nil {
		return err
	}
	w.done += applied
	if got.Ledger != w.done || got.Messages != w.done || got.Closed != w.done {
		return fmt.Errorf("%d messages were applied in all; the ledger has %d rows of %d messages, and orders were closed %d times",
			w.done, got.Ledger, got.Messages, got.Closed)
	}
	if rows == "" {
		return nil
	}
	var n int64
	if err := w.db.GetContext(ctx, &n, `SELECT count(*) FROM `+rows); err != nil {
		return err
	}
	w.rows[rows] += applied
	if n != w.rows[rows] {
		return fmt.Errorf("%d messages were applied in all; %s has %d rows", w.rows[rows], rows, n)
	}
	return nil
}
