package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"

	"github.com/jmoiron/sqlx"
	"github.com/onceward/onceward/bench/internal/compare"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/middleware"
	"github.com/onceward/onceward/reentrant"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kgo"
)

// byHand is the case that batches are compared with.
const byHand = "hand-rolled, 8 workers"

// inFlight is how many batches are handled at once: the default of the consumer.
const inFlight = 4

// A form is one of the ways to write a handler, with batches of a size, of which a share
// of the messages fails.
type form struct {
	name    string
	driver  string
	handler middleware.TxHandler
	many    int
	failing float64
}

// batches compares the way of a batch through lock and inbox with single messages that
// are handled by hand.
func batches(ctx context.Context, b *bench) error {
	hand, closeHand, err := b.handRolled(ctx)
	if err != nil {
		return err
	}
	defer closeHand()
	cases := []compare.Case{hand}
	const (
		set          = "TxBatchFunc, lib/pq, 256"
		each         = "TxFunc, lib/pq, 64"
		eachHundreds = each + ", 1 % fail"
		eachTenths   = each + ", 10 % fail"
		queue        = "QueueFunc, pgx, 256"
		queueFails   = queue + ", 1 % fail"
	)
	for _, f := range []form{
		{set, libPQ, middleware.TxBatchFunc(closeOrders), 256, 0},
		{each, libPQ, middleware.TxFunc(closeOrder), 64, 0},
		{eachHundreds, libPQ, middleware.TxFunc(closeOrder), 64, 0.01},
		{eachTenths, libPQ, middleware.TxFunc(closeOrder), 64, 0.1},
		{queue, pgx, middleware.QueueFunc(queueOrder), 256, 0},
		{queueFails, pgx, middleware.QueueFunc(queueOrder), 256, 0.01},
	} {
		c, closeForm, err := b.form(ctx, f)
		if err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		defer closeForm()
		cases = append(cases, c)
	}
	res, err := compare.Rounds(ctx, b.rounds, cases)
	if err != nil {
		return err
	}
	b.Table("batches", res, perSecond, allocs, clientCPU, serverCPU)
	ratio := func(a, b string) compare.Values { return res.Ratio(perSecond, a, b) }
	b.AtLeast("inbox/batches/set-256/of-hand-rolled", ratio(set, byHand), 24)
	b.AtLeast("inbox/batches/tx-64/of-hand-rolled", ratio(each, byHand), 2.2)
	b.AtLeast("inbox/batches/tx-64/1-percent-fail", ratio(eachHundreds, each), 0.9)
	b.AtLeast("inbox/batches/tx-64/10-percent-fail", ratio(eachTenths, each), 0.75)
	b.AtLeast("inbox/batches/queue-256/of-hand-rolled", ratio(queue, byHand), 16)
	b.AtLeast("inbox/batches/queue-256/1-percent-fail", ratio(queueFails, queue), 0.6)
	return nil
}

// form makes a case of a form: the whole way of a batch, from the records of a poll on.
func (b *bench) form(ctx context.Context, f form) (c compare.Case, closeAll func(), err error) {
	w, err := b.newWorld(ctx, f.driver, 2*inFlight, inbox.Config{Prepare: true})
	if err != nil {
		return c, nil, err
	}
	rdb := redis.NewClient(redisOptions(b.redis))
	closeAll = func() { _ = errors.Join(w.db.Close(), rdb.Close()) }
	locker, err := reentrant.New(rdb, reentrant.Config{Prefix: "bench" + strconv.Itoa(b.schemas), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		closeAll()
		return c, nil, err
	}
	closeAll = func() { _ = errors.Join(locker.Close(), w.db.Close(), rdb.Close()) }
	chain := middleware.Chain(middleware.Inbox(w.box, f.handler), middleware.Lock(locker))
	c = compare.Case{Name: f.name, Run: func(ctx context.Context) (compare.Sample, error) {
		return w.drive(ctx, b, inFlight, "inbox", func(ctx context.Context, caller, turn int) (int, error) {
			ms := feed(caller, inFlight, turn, f.many, f.failing)
			return handle(ctx, chain, ms)
		})
	}}
	return c, closeAll, nil
}

// handle takes messages through a chain, and returns how many were applied.
func handle(ctx context.Context, chain middleware.Handler, ms []message) (applied int, err error) {
	records := make([]*middleware.Message, len(ms))
	for i, m := range ms {
		r := &kgo.Record{Topic: "orders", Key: strconv.AppendInt(nil, m.order, 10), Value: []byte(m.id)}
		if records[i], err = middleware.NewMessage(identify, r); err != nil {
			return 0, err
		}
	}
	errs := chain.Handle(ctx, records)
	for i, m := range ms {
		var err error
		if errs != nil {
			err = errs[i]
		}
		fails := strings.HasPrefix(m.id, bad)
		switch {
		case err == nil && !fails:
			applied++
		case err == nil:
			return 0, fmt.Errorf("message %s was applied, and should have failed", m.id)
		case !fails || middleware.Classify(err) != middleware.Retry:
			return 0, fmt.Errorf("message %s: %w", m.id, err)
		}
	}
	return applied, nil
}

// identify is what an application says of a record.
func identify(r *kgo.Record) (middleware.Identity, error) {
	return middleware.Identity{Key: "order:" + string(r.Key), ID: string(r.Value)}, nil
}

func orderOf(r *kgo.Record) (int64, error) { return strconv.ParseInt(string(r.Key), 10, 64) }

func closeOrder(ctx context.Context, tx *sqlx.Tx, r *kgo.Record) error {
	order, err := orderOf(r)
	if err != nil {
		return err
	}
	return apply(ctx, tx, string(r.Value), order)
}

func queueOrder(_ context.Context, q *inbox.Queue, r *kgo.Record) error {
	order, err := orderOf(r)
	if err != nil {
		return err
	}
	queue(q, string(r.Value), order)
	return nil
}

func closeOrders(ctx context.Context, tx *sqlx.Tx, rs []*kgo.Record) []error {
	ids, orders := make([]string, len(rs)), make([]int64, len(rs))
	for i, r := range rs {
		order, err := orderOf(r)
		if err != nil {
			return everyone(rs, err)
		}
		ids[i], orders[i] = string(r.Value), order
	}
	return everyone(rs, applyAll(ctx, tx, ids, orders))
}

// everyone gives an error to all records, since nobody knows whose it is.
func everyone(rs []*kgo.Record, err error) []error {
	if err == nil {
		return nil
	}
	errs := make([]error, len(rs))
	for i := range errs {
		errs[i] = err
	}
	return errs
}
