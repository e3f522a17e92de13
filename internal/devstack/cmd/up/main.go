// Command up starts Kafka, Redis and Postgres and keeps them until Ctrl-C, or for as long
// as a command runs.
//
//	go run ./internal/devstack/cmd/up [-only redis,postgres] [-apache] [-fsync] [-- CMD ARGS...]
//
// Without a command it prints the addresses as NAME=value on standard output. With one, it
// runs it with these variables set and exits with its code. Progress goes to standard
// error. All ends with this process, whatever ends it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"github.com/onceward/onceward/internal/devstack"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(args []string, stdout, stderr io.Writer) int {
	cfg, cmd, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(stderr, "up:", err)
		return 2
	}
	cfg.Progress = func(line string) { fmt.Fprintln(stderr, line) }

	// Caught from here on, so that a signal during the start ends what has been started
	// before we go.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	stack, err := devstack.Start(ctx, cfg)
	stop()
	if err != nil {
		fmt.Fprintln(stderr, "up:", err)
		return 1
	}
	code := 0
	if len(cmd) > 0 {
		code = runCommand(cmd, stack.Env(), signals, stderr)
	} else {
		fmt.Fprintln(stdout, strings.Join(stack.Env(), "\n"))
		fmt.Fprintln(stderr, "ready, Ctrl-C ends it")
		<-signals
	}
	if err := stack.Close(); err != nil {
		fmt.Fprintln(stderr, "up:", err)
		code = max(code, 1)
	}
	return code
}

func parse(args []string, stderr io.Writer) (cfg devstack.Config, cmd []string, err error) {
	fs := flag.NewFlagSet("up", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() {
		fmt.Fprintln(stderr, "usage: up [flags] [-- CMD ARGS...]\n\nStarts Kafka, Redis and Postgres, for as long as CMD runs or until Ctrl-C.\n\nflags:")
		fs.PrintDefaults()
	}
	only := fs.String("only", "kafka,redis,postgres", "comma-separated `parts` to start")
	fs.BoolVar(&cfg.Apache, "apache", false, "run an Apache Kafka broker on a JVM in place of kfake (needs Java 17, and Maven the first time)")
	fs.BoolVar(&cfg.PostgresConfig.Fsync, "fsync", false, "let Postgres commits survive a power cut")
	if err := fs.Parse(args); err != nil {
		return cfg, nil, err
	}
	for part := range strings.SplitSeq(*only, ",") {
		switch strings.TrimSpace(part) {
		case devstack.Kafka:
			cfg.Kafka = true
		case devstack.Redis:
			cfg.Redis = true
		case devstack.Postgres:
			cfg.Postgres = true
		default:
			return cfg, nil, fmt.Errorf("-only names %q, must be some of kafka,redis,postgres", part)
		}
	}
	return cfg, fs.Args(), nil
}

// runCommand runs cmd to its end and returns its exit code, 128 and the signal's number
// if one ended it, as a shell does.
func runCommand(args, env []string, signals <-chan os.Signal, stderr io.Writer) int {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(stderr, "up:", err)
		return 127
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case sig := <-signals:
			// Ctrl-C reached the command too, which decides what to do; it must not
			// get it twice. The others were for us alone.
			if sig != os.Interrupt {
				cmd.Process.Signal(sig)
			}
		case err := <-ended:
			var exit *exec.ExitError
			switch {
			case err == nil:
				return 0
			case !errors.As(err, &exit):
				fmt.Fprintln(stderr, "up:", err)
				return 1
			}
			if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
				return 128 + int(ws.Signal())
			}
			return exit.ExitCode()
		}
	}
}
