package main

import (
	"context"
	"fmt"

	"github.com/onceward/onceward/reentrant"
	"github.com/redis/go-redis/v9"
)

// bare sends the commands of single cycles with go-redis and does nothing else: no
// leases, no contexts, no sharing.
type bare struct {
	rdb    *redis.Client
	cycles [][2][]any // arguments of acquire and release
}

// newBare notes the commands of one cycle for each name.
func newBare(ctx context.Context, url string, names []string) (*bare, error) {
	note := &noter{}
	rdb := redis.NewClient(clientOptions(url))
	defer rdb.Close()
	l, err := newLocker(rdb, reentrant.Config{Prefix: "bare"})
	if err != nil {
		return nil, err
	}
	defer l.Close()
	b := &bare{rdb: redis.NewClient(clientOptions(url))}
	for i, name := range names {
		for range 2 { // the first time scripts and connections are made
			note.sent = nil
			lease, err := l.Acquire(ctx, name)
			if err != nil {
				return nil, err
			}
			if err := lease.Release(ctx); err != nil {
				return nil, err
			}
			if i == 0 && len(note.sent) == 0 {
				rdb.AddHook(note)
			}
		}
		if len(note.sent) != 2 {
			return nil, fmt.Errorf("a cycle sent %d commands, want 2", len(note.sent))
		}
		b.cycles = append(b.cycles, [2][]any{note.sent[0], note.sent[1]})
	}
	return b, nil
}

func (b *bare) cycle(ctx context.Context, turn int) error {
	return b.cycleOn(ctx, b.rdb, turn)
}

// cycleOn sends the commands of one cycle by another way than a call each.
func (b *bare) cycleOn(ctx context.Context, way processor, turn int) error {
	for _, args := range b.cycles[turn%len(b.cycles)] {
		cmd := redis.NewIntSliceCmd(ctx, args...)
		if err := way.Process(ctx, cmd); err != nil {
			return err
		}
		if cmd.Val()[0] != 1 {
			return fmt.Errorf("%v: %d", args[0], cmd.Val())
		}
	}
	return nil
}

type processor interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

// A noter is a hook that keeps the commands of a client with one caller.
type noter struct{ sent [][]any }

// DialHook implements [redis.Hook].
func (n *noter) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessPipelineHook implements [redis.Hook].
func (n *noter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// ProcessHook implements [redis.Hook].
func (n *noter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		args := make([]any, len(cmd.Args()))
		for i, arg := range cmd.Args() {
			if p, ok := arg.(*string); ok { // it points into what will be used again
				arg = *p
			}
			args[i] = arg
		}
		n.sent = append(n.sent, args)
		return next(ctx, cmd)
	}
}
