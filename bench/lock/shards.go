package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/onceward/onceward/bench/internal/compare"
	"github.com/onceward/onceward/reentrant"
	"github.com/redis/go-redis/v9"
)

// shards holds locks on two servers and freezes one of them: the leases on the other
// must not notice.
func shards(ctx context.Context, b *bench) (err error) {
	url, pid, stop, err := startRedis(ctx, io.Discard)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	frozen, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	spread := halves{}
	alive, dead := clientOptions(b.url), clientOptions(url)
	ring := redis.NewRing(&redis.RingOptions{
		Addrs:             map[string]string{"alive": alive.Addr, "dead": dead.Addr},
		NewConsistentHash: spread.make,
		// A lock does not move to another server because its own does not answer.
		HeartbeatFn: func(context.Context, *redis.Client) bool { return true },
	})
	defer ring.Close()
	cfg := reentrant.Config{TTL: b.shardTTL, Logger: slog.New(slog.DiscardHandler)}
	store, err := reentrant.NewRedisStore(ring, cfg)
	if err != nil {
		return err
	}
	w := watch(store, b.sharded)
	l, err := reentrant.NewLocker(w, cfg)
	if err != nil {
		return err
	}
	defer l.Close()
	held, err := holdMany(ctx, l, w, b.sharded)
	if err != nil {
		return err
	}

	if err := frozen.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	defer frozen.Signal(syscall.SIGCONT) // else it could not be stopped in order
	select {
	case <-time.After(b.shardTTL): // all on the dead one are lost by then
	case <-ctx.Done():
		return context.Cause(ctx)
	}

	onDead := func(i int) bool { return spread.isDead(store.Group(w.name(i))) }
	onAlive := func(i int) bool { return !onDead(i) }
	var lostAlive, lostDead, nDead int
	for i, lease := range held {
		lost := lease.Context().Err() != nil
		switch {
		case onDead(i):
			nDead++
			if lost {
				lostDead++
			}
		case lost:
			lostAlive++
		}
	}
	b.Note("%d leases, TTL %v, %d of them on the server that was stopped: %d of these told of it", b.sharded, b.shardTTL, nDead, lostDead)
	if nDead == 0 || nDead == b.sharded {
		return errors.New("all leases are on one server")
	}
	b.AtMost("lock/shards/lost-on-the-other", compare.Exactly(float64(lostAlive)), 0)
	b.AtLeast("lock/shards/told-of-loss", compare.Exactly(float64(lostDead)/float64(nDead)), 1)
	b.AtMost("lock/shards/lateness-ms-on-the-other", compare.Exactly(w.latest(onAlive)), 100)
	return nil
}

// halves puts every other shard of the key space on another server.
type halves struct{}

func (h halves) make([]string) redis.ConsistentHash { return h }

// Get implements [redis.ConsistentHash].
func (h halves) Get(tag string) string {
	if h.isDead(tag) {
		return "dead"
	}
	return "alive"
}

// isDead says where a shard is: what is odd is on the server that will be frozen. It
// takes a hash tag, or a group of the store, which ends with one.
func (halves) isDead(tag string) bool {
	tag = strings.TrimRight(tag, "}:")
	return tag != "" && (tag[len(tag)-1]-'0')%2 == 1
}
