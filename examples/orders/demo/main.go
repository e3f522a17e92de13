package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/onceward/onceward/examples/orders/service"
	"github.com/onceward/onceward/internal/devstack"
)

// ChildCommand is the command by which the demo starts its own executable as an instance:
// it has to call [Child].
const ChildCommand = "demo-instance"

// Exit codes of [Main].
const (
	exitBroken      = 1
	exitNotPlayed   = 2
	exitInterrupted = 130 // as of a shell
)

// Main plays the demo and returns the exit code. It takes care of signals: Ctrl-C ends
// the children, then the servers.
func Main(args []string, stdout, stderr io.Writer) int {
	opts, err := parse(args, stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "orders demo: %v\n", err)
		return exitNotPlayed
	}
	return opts.play(stdout, stderr)
}

func (opts Options) play(stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	ok, err := run(ctx, opts, newScreen(stdout), stderr)
	switch {
	case err != nil && ctx.Err() != nil:
		fmt.Fprintln(stderr, "orders demo: interrupted")
		return exitInterrupted
	case err != nil:
		fmt.Fprintf(stderr, "orders demo: %v\n", err)
		return exitNotPlayed
	case !ok:
		return exitBroken
	}
	return 0
}

// startWithin bounds the start of the servers. Binaries may have to be fetched first.
const startWithin = 5 * time.Minute

func run(ctx context.Context, opts Options, s *screen, stderr io.Writer) (ok bool, err error) {
	begin := time.Now()
	guards := []service.Guard{opts.Guard}
	if opts.Compare {
		guards = service.Guards
		s.print(fmt.Sprintf("order timeout: %d orders, seed %d, with each guard\n", opts.Orders, opts.Seed))
	} else {
		s.print(fmt.Sprintf("order timeout: %d orders, seed %d, guard %s\n", opts.Orders, opts.Seed, opts.Guard))
	}
	s.head("servers")
	stack, err := startStack(ctx, s)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, stack.Close()) }()
	s.took(time.Since(begin))

	log := io.Discard
	if opts.Verbose {
		log = stderr
	}
	var all []*findings
	for _, g := range guards {
		if opts.Compare {
			s.head("======== guard %s ========", g)
		}
		id := string(g) + "-" + strings.ToLower(rand.Text()[:6])
		w := &world{opts: opts, guard: g, id: id, stack: stack, screen: s, log: log}
		f, err := w.play(ctx)
		if err = errors.Join(err, w.close()); err != nil {
			return false, err
		}
		all = append(all, f)
	}
	if opts.Compare {
		ok = printComparison(s, all)
	} else {
		ok = printAudit(s, all[0])
	}
	s.head("all of it took %.1f s", time.Since(begin).Seconds())
	if opts.Compare {
		printComparisonLines(s, all)
	} else {
		printLines(s, all[0])
	}
	return ok, nil
}

func startStack(ctx context.Context, s *screen) (*devstack.Stack, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startWithin, fmt.Errorf("servers not ready within %v", startWithin))
	defer cancel()
	return devstack.Start(ctx, devstack.Config{
		Kafka: true, Redis: true, Postgres: true,
		Progress: func(line string) { s.say("%s", line) },
	})
}
