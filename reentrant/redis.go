package reentrant

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// maxScriptKeys bounds the keys of one script run, and with them how long it
// keeps Redis from everything else: about a quarter of a millisecond.
const maxScriptKeys = 128

// A RedisStore is the [Store] in Redis: a hash per lock, changed by scripts.
type RedisStore struct {
	rdb    redis.UniversalClient
	keys   *keyspace
	perRun int // locks in one script run at most; 1 if their keys may live apart

	ttl   time.Duration // the usual one
	ttlMS any           // the same as an argument, made once

	acquire verb[AcquireRequest, AcquireReply]
	renew   verb[RenewRequest, HoldReply]
	release verb[ReleaseRequest, HoldReply]

	agree, look, breakGrant *script
}

// NewRedisStore returns a store that keeps its locks in Redis. It uses Prefix,
// Shards and SingleKeyScripts of cfg. It does no I/O and does not close rdb.
func NewRedisStore(rdb redis.UniversalClient, cfg Config) (*RedisStore, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("reentrant: %w", err)
	}
	if rdb == nil {
		return nil, errors.New("reentrant: Redis client is nil")
	}
	s := &RedisStore{
		rdb: rdb, keys: newKeyspace(cfg.Prefix, cfg.Shards), perRun: 1,
		ttl: cfg.TTL, ttlMS: cfg.TTL.Milliseconds(),

		agree:      newScript("agree"),
		look:       newScript("inspect"),
		breakGrant: newScript("break"),
	}
	s.acquire, s.renew, s.release = s.acquireVerb(), s.renewVerb(), s.releaseVerb()
	// Only a single server, or one behind Sentinel, has all keys in one place.
	if _, single := rdb.(*redis.Client); single && !cfg.SingleKeyScripts {
		s.perRun = maxScriptKeys / 3
	}
	return s, nil
}

// Acquire implements [Store].
func (s *RedisStore) Acquire(ctx context.Context, reqs []AcquireRequest) []AcquireReply {
	return ask(ctx, s, &s.acquire, reqs, s.perRun)
}

// Renew implements [Store].
func (s *RedisStore) Renew(ctx context.Context, reqs []RenewRequest) []HoldReply {
	perRun := s.perRun
	if perRun > 1 {
		perRun = maxScriptKeys // these have one key each
	}
	return ask(ctx, s, &s.renew, reqs, perRun)
}

// Release implements [Store].
func (s *RedisStore) Release(ctx context.Context, reqs []ReleaseRequest) []HoldReply {
	return ask(ctx, s, &s.release, reqs, s.perRun)
}

// Group implements [Store]. In a cluster each shard of the key space is one: its
// keys are on one node, so it never waits for another.
func (s *RedisStore) Group(name string) string {
	if s.perRun > 1 {
		return ""
	}
	return s.keys.shardOf(name).tag
}

// Listen implements [Store].
func (s *RedisStore) Listen(ctx context.Context, client string, woken func(Handover)) (stop func(), err error) {
	channel := s.keys.wake + client
	sub := s.rdb.Subscribe(ctx, channel)
	// Only once the subscription is confirmed is no message missed.
	if _, err := sub.Receive(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("subscribe to %s: %w", channel, err), sub.Close())
	}
	done := make(chan struct{})
	messages := sub.Channel() // subscribes again after a connection was lost
	go func() {
		defer close(done)
		for m := range messages {
			if h, ok := s.decodeHandover(m.Payload); ok {
				woken(h)
			}
		}
	}()
	return func() { _ = sub.Close(); <-done }, nil
}

func (s *RedisStore) decodeHandover(payload string) (h Handover, ok bool) {
	owner, rest, _ := strings.Cut(payload, " ")
	fence, lock, _ := strings.Cut(rest, " ")
	n, err := strconv.ParseInt(fence, 10, 64)
	name, ok := s.keys.nameOf(lock)
	return Handover{Name: name, Owner: owner, Fence: n}, ok && err == nil
}
