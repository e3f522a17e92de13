// Command orders is the order-timeout service, and a demo of what protects it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/onceward/onceward/examples/orders/demo"
	"github.com/onceward/onceward/examples/orders/service"
)

const usage = `usage: orders COMMAND [flags]

commands:
  demo     play the service with everything going wrong, and audit what is left
  migrate  make the tables in DATABASE_URL
  service  run one instance, on KAFKA_BROKERS, REDIS_URL, DATABASE_URL and PAYMENTS_URL

orders COMMAND -help tells more.
`

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(args []string, stdout, stderr io.Writer) int {
	command := ""
	if len(args) > 0 {
		command, args = args[0], args[1:]
	}
	var err error
	switch command {
	case "demo":
		return demo.Main(args, stdout, stderr)
	case "migrate":
		err = migrate(args, stdout)
	case "service":
		err = runService(args, stdout, stderr)
	case demo.ChildCommand:
		err = demo.Child()
	case "help", "-h", "-help", "--help":
		fmt.Fprint(stdout, usage)
		return 0
	case "":
		fmt.Fprint(stderr, usage)
		return 2
	default:
		fmt.Fprintf(stderr, "orders: command is %q, must be demo, migrate or service\n", command)
		return 2
	}
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "orders %s: %v\n", command, err)
		return 1
	}
	return 0
}

// parse parses the flags of a command that takes no arguments.
func parse(fs *flag.FlagSet, args []string, about string, stdout io.Writer) error {
	fs.SetOutput(io.Discard)
	err := fs.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintln(stdout, about)
		fs.SetOutput(stdout)
		fs.PrintDefaults()
	case err == nil && fs.NArg() > 0:
		err = fmt.Errorf("argument %q, must be flags only", strings.Join(fs.Args(), " "))
	}
	return err
}

// fromEnv returns the variables, and an error that names all that are not set.
func fromEnv(names ...string) (map[string]string, error) {
	env := map[string]string{}
	var errs []error
	for _, name := range names {
		if env[name] = os.Getenv(name); env[name] == "" {
			errs = append(errs, fmt.Errorf("%s is not set, must be the address of the server", name))
		}
	}
	return env, errors.Join(errs...)
}

func migrate(args []string, stdout io.Writer) error {
	fs := flag.NewFlagSet("migrate", flag.ContinueOnError)
	if err := parse(fs, args, "usage: orders migrate\n\nMakes the tables of the service and of the inbox in DATABASE_URL, if they are not there.", stdout); err != nil {
		return err
	}
	env, err := fromEnv("DATABASE_URL")
	if err != nil {
		return err
	}
	db, err := service.OpenDB(env["DATABASE_URL"], "orders-migrate")
	if err != nil {
		return err
	}
	defer db.Close()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return service.Migrate(ctx, db)
}

func runService(args []string, stdout, stderr io.Writer) error {
	fs := flag.NewFlagSet("service", flag.ContinueOnError)
	var cfg service.Config
	fs.StringVar(&cfg.Name, "name", "orders", "name of the instance, as the servers see it")
	fs.StringVar(&cfg.Group, "group", "orders", "consumer group, and name of the inbox")
	fs.StringVar(&cfg.Topic, "topic", "orders.timeout", "topic of the scan job")
	fs.StringVar(&cfg.RetryTopic, "retry-topic", "orders.timeout.retry", "topic that is consumed as well")
	if err := parse(fs, args, "usage: orders service [flags]\n\nRuns one instance until Ctrl-C, on KAFKA_BROKERS, REDIS_URL, DATABASE_URL and PAYMENTS_URL.\n\nflags:", stdout); err != nil {
		return err
	}
	env, err := fromEnv("KAFKA_BROKERS", "REDIS_URL", "DATABASE_URL", "PAYMENTS_URL")
	if err != nil {
		return err
	}
	cfg.Brokers = strings.Split(env["KAFKA_BROKERS"], ",")
	cfg.Redis, cfg.Postgres, cfg.Payments = env["REDIS_URL"], env["DATABASE_URL"], env["PAYMENTS_URL"]
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return service.Run(ctx, cfg, service.Hooks{}, slog.New(slog.NewTextHandler(stderr, nil)))
}
