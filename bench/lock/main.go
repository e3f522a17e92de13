package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"runtime/pprof"
	"syscall"
	"time"

	"github.com/onceward/onceward/bench/internal/compare"
	"github.com/onceward/onceward/internal/devstack"
	"github.com/redis/go-redis/v9"
)

func main() {
	if runAsChild() {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "lock:", err)
		}
		os.Exit(1)
	}
}

// A scenario is one part of the program, with the targets that belong to it.
type scenario struct {
	name  string
	about string
	run   func(ctx context.Context, b *bench) error
}

var scenarios = []scenario{
	{"calls", "one lock, nobody waits, one call after the other", calls},
	{"commands", "what a cycle makes Redis do", commands},
	{"batch", "64 locks at once", batch},
	{"handover", "from the release in one process to the acquire in another that waits", handover},
	{"waiters", "16 callers in 4 processes want one lock for 1 ms each", waiters},
	{"leases", "many leases held at once", leases},
	{"shards", "one of two servers does not answer any more", shards},
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

// A bench is what scenarios work with.
type bench struct {
	*compare.Report
	size

	url   string
	admin *redis.Client // for looking at the server
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	flags := flag.NewFlagSet("lock", flag.ContinueOnError)
	flags.SetOutput(stderr)
	var (
		isQuick = flags.Bool("quick", false, "measure everything, but for a short time and with few leases")
		rounds  = flags.Int("rounds", 0, "rounds of each comparison (default 15, with -quick 3; a third of it for what takes long)")
		only    = flags.String("run", "", "run only the scenarios whose names match this regular expression")
		asJSON  = flags.Bool("json", false, "print one JSON object per line")
		cpu     = flags.String("cpuprofile", "", "write a CPU profile to this file")
		mem     = flags.String("memprofile", "", "write a profile of all allocations to this file")
	)
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || *rounds < 0 {
		return fmt.Errorf("arguments are %q, must be flags only, with -rounds above 0", args)
	}
	wanted, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("-run: %w", err)
	}
	s, prefix := full, ""
	if *isQuick {
		s, prefix = quick, "quick:"
	}
	if *rounds > 0 {
		s.rounds = *rounds
	}
	stopProfiles, err := profile(*cpu, *mem)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopProfiles()) }()
	return measure(ctx, s, compare.NewReport(stdout, *asJSON, prefix), stderr, func(name string) bool { return wanted.MatchString(name) })
}

// measure runs the wanted scenarios on a Redis of their own.
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

	ran := 0
	for _, sc := range scenarios {
		if !wanted(sc.name) {
			continue
		}
		ran++
		b.Title(sc.name, sc.about)
		if err := b.admin.FlushAll(ctx).Err(); err != nil {
			return err
		}
		start := time.Now()
		if err := sc.run(ctx, b); err != nil {
			return fmt.Errorf("%s: %w", sc.name, err)
		}
		b.Note("(took %v)", time.Since(start).Round(100*time.Millisecond))
	}
	if ran == 0 {
		return errors.New("no scenario has a name that matches -run")
	}
	b.Title("done", fmt.Sprintf("%d targets short", b.Short()))
	return nil
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

// profile starts the profiles that are wanted.
func profile(cpu, mem string) (stop func() error, err error) {
	var files []*os.File
	create := func(name string) (f *os.File) {
		if name != "" && err == nil {
			if f, err = os.Create(name); err == nil {
				files = append(files, f)
			}
		}
		return f
	}
	cpuFile, memFile := create(cpu), create(mem)
	if err == nil && cpuFile != nil {
		err = pprof.StartCPUProfile(cpuFile)
	}
	if memFile != nil {
		runtime.MemProfileRate = 4096
	}
	return func() (err error) {
		if cpuFile != nil {
			pprof.StopCPUProfile()
		}
		if memFile != nil {
			err = pprof.Lookup("allocs").WriteTo(memFile, 0)
		}
		for _, f := range files {
			err = errors.Join(err, f.Close())
		}
		return err
	}, err
}
