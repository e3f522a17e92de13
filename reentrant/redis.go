package reentrant

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

var (
	//go:embed scripts/acquire.lua
	acquireSource string
	//go:embed scripts/renew.lua
	renewSource string
	//go:embed scripts/release.lua
	releaseSource string
)

// redisStore keeps locks in Redis, one script run for each of them.
type redisStore struct {
	rdb  redis.UniversalClient
	keys keyspace

	acquireScript, renewScript, releaseScript *redis.Script
}

func newRedisStore(rdb redis.UniversalClient, keys keyspace) *redisStore {
	return &redisStore{
		rdb: rdb, keys: keys,
		acquireScript: redis.NewScript(acquireSource),
		renewScript:   redis.NewScript(renewSource),
		releaseScript: redis.NewScript(releaseSource),
	}
}

func (s *redisStore) acquire(ctx context.Context, reqs []acquireRequest) []acquireReply {
	cmds := s.run(ctx, s.acquireScript, len(reqs), func(i int) ([]string, []any) {
		r := reqs[i]
		k := s.keys.of(r.name)
		return []string{k.lock, k.fence}, []any{r.owner, r.depth, r.ttl.Milliseconds(), r.hint}
	})
	replies := make([]acquireReply, len(reqs))
	for i, cmd := range cmds {
		replies[i] = decodeAcquire(cmd)
		if err := replies[i].err; err != nil {
			replies[i].err = fmt.Errorf("acquire lock %q: %w", reqs[i].name, err)
		}
	}
	return replies
}

func decodeAcquire(cmd *redis.Cmd) acquireReply {
	v, err := cmd.Int64Slice()
	switch {
	case err != nil:
		return acquireReply{err: err}
	case len(v) == 2 && v[0] == 1 && v[1] > 0:
		return acquireReply{answer: isHeld, fence: v[1]}
	case len(v) == 2 && v[0] == 0:
		// A lock without TTL (-1) was made by something else: it is busy, and
		// there is no saying for how long.
		return acquireReply{answer: isBusy, left: time.Duration(max(0, v[1])) * time.Millisecond}
	case len(v) == 1 && v[0] == -1:
		return acquireReply{answer: isGone}
	}
	return acquireReply{err: fmt.Errorf("unexpected reply %v", v)}
}

func (s *redisStore) renew(ctx context.Context, reqs []renewRequest) []holdReply {
	cmds := s.run(ctx, s.renewScript, len(reqs), func(i int) ([]string, []any) {
		r := reqs[i]
		return []string{s.keys.of(r.name).lock}, []any{r.owner, strconv.FormatInt(r.fence, 10), r.ttl.Milliseconds()}
	})
	return decodeHolds("renew", cmds, func(i int) string { return reqs[i].name })
}

func (s *redisStore) release(ctx context.Context, reqs []releaseRequest) []holdReply {
	cmds := s.run(ctx, s.releaseScript, len(reqs), func(i int) ([]string, []any) {
		r := reqs[i]
		return []string{s.keys.of(r.name).lock}, []any{r.owner, r.leave, r.ttl.Milliseconds()}
	})
	return decodeHolds("release", cmds, func(i int) string { return reqs[i].name })
}

func decodeHolds(verb string, cmds []*redis.Cmd, name func(int) string) []holdReply {
	replies := make([]holdReply, len(cmds))
	for i, cmd := range cmds {
		switch v, err := cmd.Int64(); {
		case err != nil:
			replies[i].err = fmt.Errorf("%s lock %q: %w", verb, name(i), err)
		case v == 1:
			replies[i].answer = isHeld
		case v == 0:
			replies[i].answer = isGone
		case v == -1:
			replies[i].answer = isBusy
		default:
			replies[i].err = fmt.Errorf("%s lock %q: unexpected reply %d", verb, name(i), v)
		}
	}
	return replies
}

// group is the same for all locks of a single server. In a cluster each shard of
// the key space is one: a pipeline of one hash tag never waits for another node.
func (s *redisStore) group(name string) string {
	if _, cluster := s.rdb.(*redis.ClusterClient); cluster {
		return s.keys.of(name).fence
	}
	return ""
}

// run runs a script n times with the keys and arguments that args returns: a
// single one on its own, several in one pipeline.
func (s *redisStore) run(ctx context.Context, script *redis.Script, n int, args func(i int) ([]string, []any)) []*redis.Cmd {
	cmds := make([]*redis.Cmd, n)
	if n == 1 {
		keys, argv := args(0)
		cmds[0] = script.Run(ctx, s.rdb, keys, argv...)
		return cmds
	}
	send := func(indices []int, eval func(redis.Pipeliner, []string, []any) *redis.Cmd) {
		pipe := s.rdb.Pipeline()
		for _, i := range indices {
			keys, argv := args(i)
			cmds[i] = eval(pipe, keys, argv)
		}
		_, _ = pipe.Exec(ctx) // each command has its own error
	}
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	send(all, func(pipe redis.Pipeliner, keys []string, argv []any) *redis.Cmd {
		return pipe.EvalSha(ctx, script.Hash(), keys, argv...)
	})
	// A server that was restarted, or a new master, does not know the script: it
	// has done nothing yet, so the whole text is sent to it.
	var missing []int
	for i, cmd := range cmds {
		if redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") {
			missing = append(missing, i)
		}
	}
	if len(missing) > 0 {
		send(missing, func(pipe redis.Pipeliner, keys []string, argv []any) *redis.Cmd {
			return script.Eval(ctx, pipe, keys, argv...)
		})
	}
	return cmds
}

// refused reports whether err is the server's answer that it will not do this:
// the command had no effect, and asking again would not help.
func refused(err error) bool {
	var re redis.Error
	return errors.As(err, &re)
}
