package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/onceward/onceward/bench/internal/compare"
	"github.com/onceward/onceward/bench/internal/program"
	"github.com/onceward/onceward/internal/devstack"
)

func main() { program.Main("inbox", run) }

var parts = []program.Part[*bench]{
	{Name: "single", About: "a message a transaction, 8 connections, prepared statements", Run: single},
	{Name: "batches", About: "lock, inbox and effect of whole batches", Run: batches},
	{Name: "duplicates", About: "what a message writes that comes again", Run: duplicates},
	{Name: "rows", About: "the claim in a large table and in a small one", Run: rows},
	{Name: "purge", About: "inserts as fast as can be, while old rows are removed", Run: purged},
}

// A size says how much is measured.
type size struct {
	rounds     int           // of each comparison
	window     time.Duration // of one measurement of a rate
	duplicates int
	rows       int // of the large table
	claims     int // in one measurement of the claim
}

var (
	full = size{
		rounds: 15, window: 500 * time.Millisecond,
		duplicates: 4096, rows: 10_000_000, claims: 50,
	}
	quick = size{
		rounds: 3, window: 300 * time.Millisecond,
		duplicates: 1024, rows: 200_000, claims: 20,
	}
)

// A bench is what parts work with.
type bench struct {
	*compare.Report
	size

	postgres string // URL
	redis    string // URL
	servers  []int  // process IDs
	progress io.Writer
	schemas  int // that were made
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	flags := program.NewFlags("inbox", parts, stderr)
	rows := flags.Int("rows", 0, "rows of the large table (default 10000000, with -quick 200000)")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *rows < 0 || *rows > 0 && *rows <= fewRows {
		return fmt.Errorf("-rows is %d, must be above %d", *rows, fewRows)
	}
	s := full
	if flags.Quick {
		s = quick
	}
	s.rounds = cmp.Or(flags.Rounds, s.rounds)
	s.rows = cmp.Or(*rows, s.rows)
	stopProfiles, err := flags.Profile()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopProfiles()) }()
	return measure(ctx, s, flags.Report(stdout), stderr, flags.Wanted)
}

// measure runs the wanted parts on servers of their own.
func measure(ctx context.Context, s size, report *compare.Report, progress io.Writer, wanted func(name string) bool) (err error) {
	stack, err := devstack.Start(ctx, devstack.Config{
		Redis: true, Postgres: true, Private: true,
		RedisConfig: devstack.RedisConfig{Real: true},
		PostgresConfig: devstack.PostgresConfig{Fsync: true, Settings: map[string]string{
			"shared_buffers":     "3GB", // for all of the large table
			"max_wal_size":       "8GB", // no checkpoint in the middle of a comparison, but for those that we ask for
			"checkpoint_timeout": "30min",
			"autovacuum":         "off",
		}},
		Progress: func(line string) { fmt.Fprintln(progress, line) },
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stack.Close()) }()
	b := &bench{
		Report: report, size: s, progress: progress,
		postgres: stack.Parts[devstack.Postgres].URL, redis: stack.Parts[devstack.Redis].URL,
		servers: []int{stack.Parts[devstack.Postgres].PID, stack.Parts[devstack.Redis].PID},
	}
	return program.Run(ctx, report, parts, wanted, b, b.checkpoint)
}

// serverCPU returns the CPU time that the servers have used.
func (b *bench) serverCPU() (sum time.Duration) {
	for _, pid := range b.servers {
		sum += cpuOf(pid)
	}
	return sum
}

// checkpoint makes the server write down what the part before has left to write.
func (b *bench) checkpoint(ctx context.Context) error {
	db, err := sqlx.ConnectContext(ctx, libPQ, b.postgres)
	if err != nil {
		return err
	}
	defer db.Close()
	_, err = db.ExecContext(ctx, `CHECKPOINT`)
	return err
}
