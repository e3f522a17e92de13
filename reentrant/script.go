package reentrant

import (
	"context"
	"crypto/sha1" // what Redis names scripts by; nothing depends on it being hard to invert
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"
)

// A script is run by its digest, and sent whole to a server that does not know it.
// Digest and text are kept as arguments, so that a run does not make them again.
type script struct {
	digest, text any
}

var evalsha, eval any = "evalsha", "eval"

func newScript(text string) *script {
	sum := sha1.Sum([]byte(text))
	return &script{digest: hex.EncodeToString(sum[:]), text: text}
}

// args begins the command of a run with that many keys and arguments to come.
func (s *script) args(keys, more int) []any {
	return append(make([]any, 0, 3+keys+more), evalsha, s.digest, keys)
}

// A run of a script serves the requests from..to-1. Its arguments are pointers
// where they can be: a string in an interface would be one allocation each.
type run struct {
	from, to int
	args     []any
	cmd      *redis.Cmd
}

// exec makes the runs of a script: a single one on its own, several in one
// pipeline.
func (s *RedisStore) exec(ctx context.Context, sc *script, runs []run) {
	defer s.findMasters(ctx, runs)
	s.send(ctx, runs, func(r *run) bool { return true })
	// A server that was restarted, or a new master, does not know the script: it
	// has done nothing yet, so the whole text is sent to it.
	unknown := func(r *run) bool { return redis.HasErrorPrefix(r.cmd.Err(), "NOSCRIPT") }
	for i := range runs {
		if unknown(&runs[i]) {
			s.send(ctx, runs, func(r *run) bool {
				if !unknown(r) {
					return false
				}
				r.args[0], r.args[1] = eval, sc.text
				return true
			})
			return
		}
	}
}

// findMasters lets a cluster client look for new masters if one did not answer: by
// itself it would go on asking the dead one for up to a minute.
func (s *RedisStore) findMasters(ctx context.Context, runs []run) {
	cluster, ok := s.rdb.(*redis.ClusterClient)
	if !ok {
		return
	}
	for i := range runs {
		if err := runs[i].cmd.Err(); err != nil && !Refused(err) {
			cluster.ReloadState(ctx) // in the background, not more than five times a second
			return
		}
	}
}

// send sends the runs that are wanted.
func (s *RedisStore) send(ctx context.Context, runs []run, wanted func(*run) bool) {
	if len(runs) == 1 {
		if r := &runs[0]; wanted(r) {
			r.cmd = redis.NewCmd(ctx, r.args...)
			_ = s.rdb.Process(ctx, r.cmd) // the command has its error
		}
		return
	}
	pipe := s.rdb.Pipeline()
	for i := range runs {
		if r := &runs[i]; wanted(r) {
			r.cmd = redis.NewCmd(ctx, r.args...)
			_ = pipe.Process(ctx, r.cmd)
		}
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
}

// values returns the reply of a run, that many values for each request.
func (r *run) values(each int) ([]any, error) {
	v, err := r.cmd.Result()
	if err != nil {
		return nil, err
	}
	values, ok := v.([]any)
	if !ok || len(values) != each*(r.to-r.from) {
		return nil, fmt.Errorf("unexpected reply %v", v)
	}
	return values, nil
}

// A scriptError is the server's answer about one lock of several.
type scriptError string

func (e scriptError) Error() string { return string(e) }

// RedisError makes it one of go-redis's [redis.Error].
func (e scriptError) RedisError() {}

// Refused reports whether err is the server's answer that it did not do what it
// was asked to: there was no effect.
func Refused(err error) bool {
	_, ok := errors.AsType[redis.Error](err)
	return ok
}

// passing are the refusals that may not last: a server that loads its data, a
// cluster that looks for a new master, a script of somebody else that runs on.
var passing = []string{"LOADING", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN", "BUSY", "OOM"}

// permanent reports whether asking again would get the same refusal (no permission,
// a key of another type, not a master).
func permanent(err error) bool {
	return Refused(err) && !slices.ContainsFunc(passing, func(prefix string) bool { return redis.HasErrorPrefix(err, prefix) })
}
