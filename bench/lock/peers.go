package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/onceward/onceward/reentrant"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

// Names of the libraries.
const (
	onceward = "onceward"
	raw      = "raw SET NX"
	redSync  = "redsync"
	redisLok = "redislock"
	rueidisL = "rueidislock"
)

// A lock does work while it holds the named lock, and waits for it first.
type lock func(ctx context.Context, name string, work func()) error

// A peer is one library with a client of its own.
type peer struct {
	name  string
	lock  lock
	close func() error
}

// clientOptions are those of all go-redis clients here.
func clientOptions(url string) *redis.Options {
	opts, err := redis.ParseURL(url)
	if err != nil {
		panic(err) // it comes from the stack that we started
	}
	// As many connections as callers, so that no peer waits for one: the default on
	// two cores is 20.
	opts.PoolSize = 64
	return opts
}

// newPeer makes a peer. Keys of different peers do not meet.
func newPeer(name, url string) (*peer, error) {
	if name == rueidisL {
		return newRueidislock(url)
	}
	rdb := redis.NewClient(clientOptions(url))
	p := &peer{name: name, close: rdb.Close}
	switch name {
	case onceward:
		l, err := newLocker(rdb, reentrant.Config{})
		if err != nil {
			return nil, errors.Join(err, rdb.Close())
		}
		p.close = func() error { return errors.Join(l.Close(), rdb.Close()) }
		p.lock = func(ctx context.Context, name string, work func()) error {
			lease, err := l.Acquire(ctx, name)
			if err != nil {
				return err
			}
			work()
			return lease.Release(ctx)
		}
	case raw:
		p.lock = rawLock(rdb)
	case redSync:
		rs := redsync.New(goredis.NewPool(rdb))
		p.lock = func(ctx context.Context, name string, work func()) error {
			m := rs.NewMutex("redsync:" + name)
			if err := m.LockContext(ctx); err != nil {
				return err
			}
			work()
			_, err := m.UnlockContext(ctx)
			return err
		}
	case redisLok:
		locker := redislock.New(rdb)
		opts := &redislock.Options{RetryStrategy: redislock.LinearBackoff(10 * time.Millisecond)}
		p.lock = func(ctx context.Context, name string, work func()) error {
			l, err := locker.Obtain(ctx, "redislock:"+name, 8*time.Second, opts)
			if err != nil {
				return err
			}
			work()
			return l.Release(ctx)
		}
	default:
		return nil, errors.Join(fmt.Errorf("no library is called %q", name), rdb.Close())
	}
	return p, nil
}

// newLocker makes one of ours, with defaults and without log lines.
func newLocker(rdb redis.UniversalClient, cfg reentrant.Config) (*reentrant.Locker, error) {
	cfg.Logger = slog.New(slog.DiscardHandler)
	return reentrant.New(rdb, cfg)
}

// rawLock is the least that can be done with two round trips.
func rawLock(rdb *redis.Client) lock {
	compareAndDelete := redis.NewScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`)
	var last atomic.Int64
	return func(ctx context.Context, name string, work func()) error {
		key, value := "raw:"+name, strconv.FormatInt(last.Add(1), 36)
		ok, err := rdb.SetNX(ctx, key, value, 30*time.Second).Result()
		if err != nil {
			return err
		}
		if !ok {
			return errors.New("busy")
		}
		work()
		n, err := compareAndDelete.Run(ctx, rdb, []string{key}, value).Int()
		if err == nil && n != 1 {
			err = errors.New("lost")
		}
		return err
	}
}

func newRueidislock(url string) (*peer, error) {
	opts := clientOptions(url)
	// The dialer of the standard library, as with go-redis.
	l, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{InitAddress: []string{opts.Addr}, Dialer: net.Dialer{Timeout: 5 * time.Second}},
		KeyMajority:  1,
	})
	if err != nil {
		return nil, err
	}
	return &peer{
		name:  rueidisL,
		close: func() error { l.Close(); return nil },
		lock: func(ctx context.Context, name string, work func()) error {
			_, release, err := l.WithContext(ctx, name)
			if err != nil {
				return err
			}
			work()
			release() // returns when the key is gone
			return nil
		},
	}, nil
}
