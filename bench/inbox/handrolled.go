package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/jmoiron/sqlx"
	"github.com/onceward/onceward/bench/internal/compare"
	"github.com/onceward/onceward/inbox"
	"github.com/redis/go-redis/v9"
)

// handRolled is what people write: a lock of redsync, and a table of messages that is
// asked before the effect.
func (b *bench) handRolled(ctx context.Context) (c compare.Case, closeAll func(), err error) {
	const workers = 8
	w, err := b.newWorld(ctx, libPQ, workers, inbox.Config{})
	if err != nil {
		return c, nil, err
	}
	rdb := redis.NewClient(redisOptions(b.redis))
	rs := redsync.New(goredis.NewPool(rdb))
	handle := func(ctx context.Context, m message) (err error) {
		mutex := rs.NewMutex("hand:" + lockName(m.order))
		if err := mutex.LockContext(ctx); err != nil {
			return err
		}
		defer func() {
			_, unlocked := mutex.UnlockContext(ctx)
			err = errors.Join(err, unlocked)
		}()
		return w.inTx(ctx, func(tx *sqlx.Tx) error {
			var seen bool
			if err := tx.GetContext(ctx, &seen, `SELECT EXISTS (SELECT FROM seen WHERE consumer = $1 AND message_id = $2)`, "bench", m.id); err != nil {
				return err
			}
			if seen {
				return fmt.Errorf("message %s was seen before", m.id)
			}
			if err := apply(ctx, tx, m.id, m.order); err != nil {
				return err
			}
			_, err := tx.ExecContext(ctx, `INSERT INTO seen (consumer, message_id) VALUES ($1, $2)`, "bench", m.id)
			return err
		})
	}
	c = compare.Case{Name: byHand, Run: func(ctx context.Context) (compare.Sample, error) {
		return w.drive(ctx, b, workers, "seen", func(ctx context.Context, caller, turn int) (int, error) {
			return 1, handle(ctx, feed(caller, workers, turn, 1, 0)[0])
		})
	}}
	return c, func() { _ = errors.Join(w.db.Close(), rdb.Close()) }, nil
}

// redisOptions are those of all clients here.
func redisOptions(url string) *redis.Options {
	opts, err := redis.ParseURL(url)
	if err != nil {
		panic(err) // it comes from the stack that we started
	}
	return opts
}
