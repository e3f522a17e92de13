package main

import (
	"context"
	"errors"
	"log"
	"os"
	"os/signal"
	"strings"

	"github.com/jmoiron/sqlx"
	_ "github.com/lib/pq"
	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/middleware"
	"github.com/onceward/onceward/reentrant"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	db := sqlx.MustOpen("postgres", os.Getenv("DATABASE_URL"))
	rdb := redis.NewClient(&redis.Options{Addr: os.Getenv("REDIS_ADDR")})

	locker, err1 := reentrant.New(rdb, reentrant.Config{})
	box, err2 := inbox.New(db, inbox.Config{Consumer: "order-closer"})
	c, err3 := consumer.New(consumer.Config{
		Group:  "order-closer",
		Client: []kgo.Opt{kgo.SeedBrokers(strings.Split(os.Getenv("KAFKA_BROKERS"), ",")...)},
	}, consumer.Route{
		Topics:   []string{"orders.timeout"},
		Identify: identify,
		Handler:  middleware.Chain(middleware.Inbox(box, middleware.TxFunc(closeOrder)), middleware.Lock(locker)),
	})
	if err := errors.Join(err1, err2, err3, inbox.Migrate(ctx, db)); err != nil {
		log.Fatal(err)
	}
	if err := c.Run(ctx); err != nil { // until Ctrl-C: then it drains and commits
		log.Fatal(err)
	}
}

// identify decides what a record is about: the lock, and what makes it a duplicate.
func identify(r *kgo.Record) (middleware.Identity, error) {
	return middleware.Identity{Key: "order:" + string(r.Key), ID: "timeout:" + string(r.Value)}, nil
}

// closeOrder takes effect once for each message ID: it commits with the inbox row.
func closeOrder(ctx context.Context, tx *sqlx.Tx, r *kgo.Record) error {
	_, err := tx.ExecContext(ctx, `UPDATE orders SET status = 'closed' WHERE id = $1 AND status = 'unpaid'`, string(r.Key))
	return err
}
