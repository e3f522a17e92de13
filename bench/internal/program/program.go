package program

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"syscall"
	"time"

	"github.com/onceward/onceward/bench/internal/compare"
)

// Main runs a program, until it ends or somebody interrupts it, and exits.
func Main(name string, run func(ctx context.Context, args []string, stdout, stderr io.Writer) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(exitCode(name, err, os.Stderr))
}

// exitCode says what went wrong, and returns 1 if anything did. To ask for help is
// not wrong, and was answered.
func exitCode(name string, err error, stderr io.Writer) int {
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return 0
	}
	fmt.Fprintf(stderr, "%s: %v\n", name, err)
	return 1
}

// A Part is one part of a program, with the targets that belong to it.
type Part[B any] struct {
	Name  string
	About string
	Run   func(ctx context.Context, b B) error
}

// Run runs the parts that are wanted, one after the other, after prepare.
func Run[B any](ctx context.Context, report *compare.Report, parts []Part[B], wanted func(name string) bool, b B, prepare func(ctx context.Context) error) error {
	ran := 0
	for _, p := range parts {
		if !wanted(p.Name) {
			continue
		}
		ran++
		report.Title(p.Name, p.About)
		if err := prepare(ctx); err != nil {
			return fmt.Errorf("%s: %w", p.Name, err)
		}
		start := time.Now()
		if err := p.Run(ctx, b); err != nil {
			return fmt.Errorf("%s: %w", p.Name, err)
		}
		report.Note("(took %v)", time.Since(start).Round(100*time.Millisecond))
	}
	if ran == 0 {
		return errors.New("no part has a name that matches -run")
	}
	report.Title("done", fmt.Sprintf("%d targets short", report.Short()))
	return nil
}

// Flags are the flags that all programs have. A program may add its own.
type Flags struct {
	*flag.FlagSet

	Quick  bool
	Rounds int                    // 0: not said
	Wanted func(name string) bool // whether a part is to run

	only     string
	asJSON   bool
	cpu, mem string
}

// NewFlags makes the flags of a program with these parts.
func NewFlags[B any](name string, parts []Part[B], stderr io.Writer) *Flags {
	f := &Flags{FlagSet: flag.NewFlagSet(name, flag.ContinueOnError)}
	f.SetOutput(stderr)
	f.BoolVar(&f.Quick, "quick", false, "measure everything, but for a short time and with few of what takes long")
	f.IntVar(&f.Rounds, "rounds", 0, "rounds of each comparison (default 15, with -quick 3; a third of it for what takes long)")
	f.StringVar(&f.only, "run", "", "run only the parts whose names match this regular expression")
	f.BoolVar(&f.asJSON, "json", false, "print one JSON object per line")
	f.StringVar(&f.cpu, "cpuprofile", "", "write a CPU profile to this file")
	f.StringVar(&f.mem, "memprofile", "", "write a profile of all allocations to this file")
	f.Usage = func() {
		fmt.Fprintf(stderr, "usage: %s [flags]\n\nparts:\n", name)
		for _, p := range parts {
			fmt.Fprintf(stderr, "  %-12s %s\n", p.Name, p.About)
		}
		fmt.Fprint(stderr, "\nflags:\n")
		f.PrintDefaults()
	}
	return f
}

// Parse reads the arguments. Its error matches [flag.ErrHelp] if they asked for help,
// which was given.
func (f *Flags) Parse(args []string) error {
	if err := f.FlagSet.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 || f.Rounds < 0 {
		return fmt.Errorf("arguments are %q, must be flags only, with -rounds above 0", args)
	}
	wanted, err := regexp.Compile(f.only)
	if err != nil {
		return fmt.Errorf("-run: %w", err)
	}
	f.Wanted = wanted.MatchString
	return nil
}

// Report makes the report that the flags ask for.
func (f *Flags) Report(stdout io.Writer) *compare.Report {
	prefix := ""
	if f.Quick {
		prefix = "quick:"
	}
	return compare.NewReport(stdout, f.asJSON, prefix)
}
