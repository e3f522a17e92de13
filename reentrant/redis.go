package reentrant

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

var (
	//go:embed scripts/queue.lua
	queueSource string
	//go:embed scripts/acquire.lua
	acquireSource string
	//go:embed scripts/renew.lua
	renewSource string
	//go:embed scripts/release.lua
	releaseSource string
)

// maxScriptKeys bounds the keys of one script run, and with them how long it
// keeps Redis from everything else: about a quarter of a millisecond.
const maxScriptKeys = 128

// A RedisStore is the [Store] in Redis: a hash per lock, changed by scripts.
type RedisStore struct {
	rdb    redis.UniversalClient
	keys   *keyspace
	perRun int // locks in one script run at most; 1 if their keys may live apart

	acquire, renew, release, agree, look, breakGrant *script
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
		acquire: newScript(queueSource + acquireSource),
		renew:   newScript(renewSource),
		release: newScript(queueSource + releaseSource),
		agree:   newScript(agreeSource),

		look:       newScript(inspectSource),
		breakGrant: newScript(queueSource + breakSource),
	}
	// Only a single server, or one behind Sentinel, has all keys in one place.
	if _, single := rdb.(*redis.Client); single && !cfg.SingleKeyScripts {
		s.perRun = maxScriptKeys / 3
	}
	return s, nil
}

// Acquire implements [Store].
func (s *RedisStore) Acquire(ctx context.Context, reqs []AcquireRequest) []AcquireReply {
	ks := s.keysOf(len(reqs), func(i int) string { return reqs[i].Name })
	var runs []run
	for from := 0; from < len(reqs); {
		first := &reqs[from]
		to := from + 1
		for to < len(reqs) && to-from < s.perRun && reqs[to].TTL == first.TTL && reqs[to].Seat == first.Seat {
			to++
		}
		args := s.acquire.args(3*(to-from), 2+3*(to-from))
		for i := from; i < to; i++ {
			args = append(args, &ks[i].lock, &ks[i].wait, ks[i].fence)
		}
		args = append(args, first.TTL.Milliseconds(), first.Seat.Milliseconds())
		for i := from; i < to; i++ {
			args = append(args, &reqs[i].Owner, reqs[i].Depth, reqs[i].FenceAtLeast)
		}
		runs = append(runs, run{from: from, to: to, args: args})
		from = to
	}
	s.exec(ctx, s.acquire, runs)
	replies := make([]AcquireReply, len(reqs))
	for _, r := range runs {
		values, err := r.values(2)
		for i := r.from; i < r.to; i++ {
			replies[i] = decodeAcquire(values, 2*(i-r.from), err)
			if replies[i].Err != nil {
				replies[i].Err = fmt.Errorf("acquire lock %q: %w", reqs[i].Name, replies[i].Err)
			}
		}
	}
	return replies
}

func decodeAcquire(values []any, at int, err error) AcquireReply {
	if err != nil {
		return AcquireReply{Err: err}
	}
	code, ok := values[at].(int64)
	value, isInt := values[at+1].(int64)
	switch {
	case ok && isInt && code == 1 && value > 0:
		return AcquireReply{Answer: Held, Fence: value}
	case ok && isInt && code == 0 && value >= 0:
		return AcquireReply{Answer: Busy, Left: time.Duration(value) * time.Millisecond}
	case ok && code == -1:
		return AcquireReply{Answer: Gone}
	case ok && code == -2:
		return AcquireReply{Err: scriptError(fmt.Sprint(values[at+1]))}
	}
	return AcquireReply{Err: fmt.Errorf("unexpected reply %v", values)}
}

// Renew implements [Store].
func (s *RedisStore) Renew(ctx context.Context, reqs []RenewRequest) []HoldReply {
	ks := s.keysOf(len(reqs), func(i int) string { return reqs[i].Name })
	perRun := s.perRun
	if perRun > 1 {
		perRun = maxScriptKeys // these have one key each
	}
	var runs []run
	for from := 0; from < len(reqs); {
		to := from + 1
		for to < len(reqs) && to-from < perRun && reqs[to].TTL == reqs[from].TTL {
			to++
		}
		args := s.renew.args(to-from, 1+2*(to-from))
		for i := from; i < to; i++ {
			args = append(args, &ks[i].lock)
		}
		args = append(args, reqs[from].TTL.Milliseconds())
		for i := from; i < to; i++ {
			args = append(args, &reqs[i].Owner, strconv.FormatInt(reqs[i].Fence, 10))
		}
		runs = append(runs, run{from: from, to: to, args: args})
		from = to
	}
	s.exec(ctx, s.renew, runs)
	return decodeHolds("renew", runs, len(reqs), func(i int) string { return reqs[i].Name })
}

// Release implements [Store].
func (s *RedisStore) Release(ctx context.Context, reqs []ReleaseRequest) []HoldReply {
	ks := s.keysOf(len(reqs), func(i int) string { return reqs[i].Name })
	var runs []run
	for from := 0; from < len(reqs); {
		to := from + 1
		for to < len(reqs) && to-from < s.perRun && reqs[to].TTL == reqs[from].TTL {
			to++
		}
		args := s.release.args(3*(to-from), 3+3*(to-from))
		for i := from; i < to; i++ {
			args = append(args, &ks[i].lock, &ks[i].wait, ks[i].fence)
		}
		args = append(args, reqs[from].TTL.Milliseconds(), HandoverTTL.Milliseconds(), s.keys.wake())
		for i := from; i < to; i++ {
			giveUp := 0
			if reqs[i].GiveUp {
				giveUp = 1
			}
			args = append(args, &reqs[i].Owner, reqs[i].Leave, giveUp)
		}
		runs = append(runs, run{from: from, to: to, args: args})
		from = to
	}
	s.exec(ctx, s.release, runs)
	return decodeHolds("release", runs, len(reqs), func(i int) string { return reqs[i].Name })
}

func decodeHolds(verb string, runs []run, n int, name func(int) string) []HoldReply {
	replies := make([]HoldReply, n)
	for _, r := range runs {
		values, err := r.values(1)
		for i := r.from; i < r.to; i++ {
			err := err
			if err == nil {
				switch v := values[i-r.from]; v {
				case int64(1):
					replies[i].Answer = Held
				case int64(0):
					replies[i].Answer = Gone
				case int64(-1):
					replies[i].Answer = Busy
				default:
					err = fmt.Errorf("unexpected reply %v", v)
					if text, ok := v.(string); ok {
						err = scriptError(text)
					}
				}
			}
			if err != nil {
				replies[i].Err = fmt.Errorf("%s lock %q: %w", verb, name(i), err)
			}
		}
	}
	return replies
}

// Group implements [Store]. In a cluster each shard of the key space is one: its
// keys are on one node, so it never waits for another.
func (s *RedisStore) Group(name string) string {
	if s.perRun > 1 {
		return ""
	}
	return s.keys.shardOf(name).tag
}

func (s *RedisStore) keysOf(n int, name func(int) string) []keys {
	ks := make([]keys, n)
	for i := range ks {
		ks[i] = s.keys.of(name(i))
	}
	return ks
}

// Listen implements [Store].
func (s *RedisStore) Listen(ctx context.Context, client string, woken func(Handover)) (stop func(), err error) {
	channel := s.keys.wake() + client
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
	owner, lock, _ := strings.Cut(payload, " ")
	name, ok := s.keys.nameOf(lock)
	return Handover{Name: name, Owner: owner}, ok
}
