package demo

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	"github.com/onceward/onceward/examples/orders/service"
)

// MinOrders is how few orders make a run: below, the scenes would be alone on stage.
const MinOrders = 100

// Options say what is played.
type Options struct {
	Guard   service.Guard
	Orders  int
	Seed    uint64
	Compare bool
	Verbose bool

	timing timing
}

const usage = `usage: orders demo [flags]

Three instances of the order-timeout service, every event two or three times, one instance
killed, one paused past its lease, one stopped while its COMMIT is on its way. Then an audit.

Kafka, Redis and Postgres are those of KAFKA_BROKERS, REDIS_URL and DATABASE_URL; what is not
set is found on this machine or fetched, and thrown away at the end.

The last lines are for scripts: "invariant NAME ok" or "invariant NAME broken N", "count NAME N"
and, with -compare, "damage GUARD N". The exit code is 1 if an invariant is broken, and 2 if
the flags are wrong or the demo could not be played.

flags:
`

// parse reads the flags. The error names the flag and says what is right.
func parse(args []string, out io.Writer) (Options, error) {
	fs := flag.NewFlagSet("demo", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	guard := fs.String("guard", string(service.Both), "what protects the effects: none, lock, inbox or both")
	orders := fs.Int("orders", 3000, fmt.Sprintf("how many orders are not paid in time, at least %d", MinOrders))
	seed := fs.Uint64("seed", 1, "decides what is in the orders, and where the copies of their events go")
	compare := fs.Bool("compare", false, "play the same world with each guard, and show the four side by side")
	verbose := fs.Bool("v", false, "show what the instances log")
	err := fs.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(out, usage)
		fs.SetOutput(out)
		fs.PrintDefaults()
		return Options{}, err
	}
	if err != nil {
		return Options{}, fmt.Errorf("%w (see orders demo -help)", err)
	}
	var errs []error
	if fs.NArg() > 0 {
		errs = append(errs, fmt.Errorf("argument %q, must be flags only", strings.Join(fs.Args(), " ")))
	}
	o := Options{Orders: *orders, Seed: *seed, Compare: *compare, Verbose: *verbose, timing: normal}
	if o.Guard, err = service.ParseGuard(*guard); err != nil {
		errs = append(errs, fmt.Errorf("-%w", err))
	}
	if o.Orders < MinOrders {
		errs = append(errs, fmt.Errorf("-orders is %d, must be at least %d", o.Orders, MinOrders))
	}
	set := map[string]bool{}
	fs.Visit(func(f *flag.Flag) { set[f.Name] = true })
	if o.Compare && set["guard"] {
		errs = append(errs, errors.New("-guard and -compare are both set, must be one of them: -compare plays all guards"))
	}
	return o, errors.Join(errs...)
}
