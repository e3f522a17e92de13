package reentrant

import (
	"context"
	"crypto/sha1" // what Redis names scripts by; nothing depends on it being hard to invert
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"slices"

	"github.com/redis/go-redis/v9"
)

// A script is run by its digest, and sent whole to a server that does not know it.
// Digest and text are kept as arguments, so that a run does not make them again.
type script struct {
	digest, text any
}

var evalsha, eval any = "evalsha", "eval"

//go:embed scripts/*.lua
var sources embed.FS

// newScript makes a script of the file of that name and what it includes.
func newScript(name string) *script {
	text := include.ReplaceAllStringFunc(source(name), func(line string) string {
		return source(include.FindStringSubmatch(line)[1])
	})
	sum := sha1.Sum([]byte(text))
	return &script{digest: hex.EncodeToString(sum[:]), text: text}
}

var include = regexp.MustCompile(`(?m)^-- include (\w+)\.lua\n`)

func source(name string) string {
	text, err := sources.ReadFile("scripts/" + name + ".lua")
	if err != nil {
		panic(err) // names are those of the files of this package
	}
	return string(text)
}

// args begins the command of a run with that many keys and arguments to come.
func (s *script) args(keys, more int) []any {
	return append(make([]any, 0, 3+keys+more), evalsha, s.digest, keys)
}

// A run of a script serves the requests from..to-1. Its arguments are pointers
// where they can be: a string in an interface would be one allocation each.
type run struct {
	from, to int
	cmd      redis.Cmder
}

// exec makes the runs of a script: a single one on its own, several in one
// pipeline.
func (s *RedisStore) exec(ctx context.Context, sc *script, runs []run) {
	defer s.findMasters(ctx, runs)
	s.send(ctx, runs)
	// A server that was restarted, or a new master, does not know the script: it
	// has done nothing yet, so the whole text is sent to it.
	var unknown []run
	for _, r := range runs {
		if err := r.cmd.Err(); err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
			args := r.cmd.Args()
			args[0], args[1] = eval, sc.text
			unknown = append(unknown, r)
		}
	}
	if len(unknown) > 0 {
		s.send(ctx, unknown)
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

func (s *RedisStore) send(ctx context.Context, runs []run) {
	if len(runs) == 1 {
		_ = s.rdb.Process(ctx, runs[0].cmd) // the command has its error
		return
	}
	pipe := s.rdb.Pipeline()
	for _, r := range runs {
		_ = pipe.Process(ctx, r.cmd)
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
}

// numbers returns the reply of a run that is made of so many numbers. Its command is
// a [redis.IntSliceCmd].
func (r *run) numbers(n int) ([]int64, error) {
	ns, err := r.cmd.(*redis.IntSliceCmd).Result()
	if err == nil && len(ns) != n {
		err = fmt.Errorf("unexpected reply %d", ns)
	}
	return ns, err
}

// values returns the reply of a run that is made of so many values of any type. Its
// command is a [redis.SliceCmd].
func (r *run) values(n int) ([]any, error) {
	vs, err := r.cmd.(*redis.SliceCmd).Result()
	if err == nil && len(vs) != n {
		err = fmt.Errorf("unexpected reply %v", vs)
	}
	return vs, err
}

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
