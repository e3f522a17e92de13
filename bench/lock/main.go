package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/onceward/onceward/bench/internal/compare"
	"github.com/onceward/onceward/bench/internal/program"
	"github.com/onceward/onceward/internal/devstack"
	"github.com/redis/go-redis/v9"
)

func main() {
	if !runAsChild() {
		program.Main("lock", run)
	}
}

var parts = []program.Part[*bench]{
	{Name: "calls", About: "one lock, nobody waits, one call after the other", Run: calls},
	{Name: "commands", About: "what a cycle makes Redis do", Run: commands},
	{Name: "batch", About: "64 locks at once", Run: batch},
	{Name: "handover", About: "from the release in one process to the acquire in another that waits", Run: handover},
	{Name: "waiters", About: "16 callers in 4 processes want one lock for 1 ms each", Run: waiters},
	{Name: "leases", About: "many leases held at once", Run: leases},
	{Name: "shards", About: "one of two servers does not answer any more", Run: shards},
}

// A size says how much is measured.
type size struct {
	rounds   int           // of what is compared by its rate
	window   time.Duration // of one measurement of a rate
	cycles   int           // whose commands are counted
	trials   int           // hand-overs in one measurement
	contend  time.Duration // of one measurement with waiters
	leases   int
	leaseTTL time.Duration
	sharded  int // leases on two servers
	shardTTL time.Duration
}

var (
	full = size{
		rounds: 15, window: 150 * time.Millisecond, cycles: 1000,
		trials: 20, contend: 1500 * time.Millisecond,
		leases: 100_000, leaseTTL: 30 * time.Second, sharded: 20_000, shardTTL: 6 * time.Second,
	}
	quick = size{
		rounds: 3, window: 100 * time.Millisecond, cycles: 200,
		trials: 5, contend: 500 * time.Millisecond,
		leases: 10_000, leaseTTL: 3 * time.Second, sharded: 2_000, shardTTL: 2 * time.Second,
	}
)

// few is the number of rounds of what takes long.
func (s size) few() int { return max(1, s.rounds/3) }

// A bench is what parts work with.
type bench struct {
	*compare.Report
	size

	url   string
	admin *redis.Client // for looking at the server
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	flags := program.NewFlags("lock", parts, stderr)
	if err := flags.Parse(args); err != nil {
		return err
	}
	s := full
	if flags.Quick {
		s = quick
	}
	s.rounds = cmp.Or(flags.Rounds, s.rounds)
	stopProfiles, err := flags.Profile()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopProfiles()) }()
	return measure(ctx, s, flags.Report(stdout), stderr, flags.Wanted)
}

// measure runs the wanted parts on a Redis of their own.
func measure(ctx context.Context, s size, report *compare.Report, progress io.Writer, wanted func(name string) bool) (err error) {
	b := &bench{Report: report, size: s}
	url, _, stop, err := startRedis(ctx, progress)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	b.url = url
	b.admin = redis.NewClient(clientOptions(url))
	defer b.admin.Close()

	return program.Run(ctx, report, parts, wanted, b, func(ctx context.Context) error { return b.admin.FlushAll(ctx).Err() })
}

// startRedis starts a server that nobody else uses.
func startRedis(ctx context.Context, progress io.Writer) (url string, pid int, stop func() error, err error) {
	stack, err := devstack.Start(ctx, devstack.Config{
		Redis: true, Private: true, RedisConfig: devstack.RedisConfig{Real: true},
		Progress: func(line string) { fmt.Fprintln(progress, line) },
	})
	if err != nil {
		return "", 0, nil, err
	}
	part := stack.Parts[devstack.Redis]
	return part.URL, part.PID, stack.Close, nil
}
