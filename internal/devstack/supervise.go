package devstack

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// supervisorEnv makes a process that imports this package a supervisor.
const supervisorEnv = "ONCEWARD_DEVSTACK_SUPERVISOR"

// stopWithin bounds the whole stop of a stack, from the end of the pipe until the folder
// is gone: 5 s for a server to end in order, 1 s after SIGQUIT, and the rest for the
// removal of its files.
const stopWithin = 10 * time.Second

// A server is one running part, as the supervisor sees it.
type server interface {
	// start starts it and returns when it answers, the second time at the same address.
	start(ctx context.Context) error
	kill()      // at once; returns when it is gone
	stop()      // in order, in bounded time; returns when it is gone
	info() Part // URL, Rung and PID, after start
}

// This must be an init function. A test binary's main belongs to package testing and a
// program's to its author; neither could be made to call us first.
func init() {
	if os.Getenv(supervisorEnv) == "" {
		return
	}
	os.Unsetenv(supervisorEnv) // not for the servers
	os.Exit(supervise(os.Stdin, os.Stdout))
}

// supervise is the supervisor's main function. It returns its exit code.
func supervise(in io.Reader, out io.Writer) int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	// Postgres runs as another user if we are root, and reads what we make.
	syscall.Umask(0o022)

	// Signals to a foreground group do not get here, but a "kill -INT" by name does. They
	// are caught, not ignored, because children would inherit that. Without SIGPIPE a
	// report to a dead parent would end us before the servers are stopped.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGPIPE)
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)

	lines := bufio.NewReader(in)
	var cfg Config
	line, err := lines.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &cfg)
	}
	if err != nil {
		fmt.Fprintln(out, "devstack: supervisor: no configuration:", err)
		return 2
	}
	commands := make(chan command)
	go func() {
		defer cancel() // the parent hung up, or is gone
		for {
			line, err := lines.ReadBytes('\n')
			if err != nil {
				return
			}
			var c command
			if json.Unmarshal(line, &c) == nil {
				select {
				case commands <- c:
				case <-ctx.Done():
				}
			}
		}
	}()
	go func() {
		<-term
		cancel()
	}()

	s := &stackServers{out: out}
	dir, err := newFolder()
	if err == nil {
		defer dir.remove()
		err = s.startAll(ctx, cfg, dir.path)
		defer s.stopAll()
	}
	if err != nil {
		var missing *missingError
		s.report(report{Error: err.Error(), Missing: errors.As(err, &missing)})
		return 1
	}
	if !s.any() {
		dir.remove() // all from the environment: nothing to keep alive
		dir.path = ""
	}
	s.report(report{Ready: s.parts, Dir: dir.path})
	for s.any() {
		select {
		case <-ctx.Done():
			return 0
		case c := <-commands:
			s.report(s.run(ctx, c))
		}
	}
	return 0
}

// stackServers are the servers of the supervisor.
type stackServers struct {
	mu  sync.Mutex // guards all fields
	out io.Writer

	servers map[string]server // started, in whole or in part
	parts   map[string]Part   // that answer
}

func (s *stackServers) report(r report) {
	line, err := json.Marshal(r)
	if err != nil {
		panic(err) // strings and numbers only
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out.Write(append(line, '\n')) // an error means that the parent is gone, which the other pipe tells
}

func (s *stackServers) progress(part, format string, args ...any) {
	s.report(report{Progress: part + ": " + fmt.Sprintf(format, args...)})
}

// any reports whether there is a server to keep alive.
func (s *stackServers) any() bool {
	for _, p := range s.parts {
		if p.PID != 0 {
			return true
		}
	}
	return false
}

// startAll starts the parts side by side and returns when all answer, or when one cannot
// be had and the others have given up.
func (s *stackServers) startAll(ctx context.Context, cfg Config, dir string) error {
	s.servers, s.parts = map[string]server{}, map[string]Part{}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	var errs []error
	for _, part := range cfg.parts() {
		wg.Go(func() {
			begin := time.Now()
			note := func(format string, args ...any) { s.progress(part, format, args...) }
			srv, err := find(ctx, part, cfg, dir, note)
			if err == nil {
				s.mu.Lock()
				s.servers[part] = srv
				s.mu.Unlock()
				err = srv.start(ctx)
			}
			if err != nil {
				s.mu.Lock()
				defer s.mu.Unlock()
				if ctx.Err() == nil { // else it failed because another did
					errs = append(errs, fmt.Errorf("%s: %w", part, err))
				}
				// A missing part lets the others go on: they may be missing too, and
				// one error should name all.
				if !errors.As(err, new(*missingError)) {
					cancel(err)
				}
				return
			}
			p := srv.info()
			p.Took = time.Since(begin)
			s.mu.Lock()
			s.parts[part] = p
			s.mu.Unlock()
			note("%s, ready in %.1fs", p.Rung, p.Took.Seconds())
		})
	}
	wg.Wait()
	if len(errs) == 0 && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return errors.Join(errs...)
}

// stopAll stops the servers side by side.
func (s *stackServers) stopAll() {
	var wg sync.WaitGroup
	for srv := range maps.Values(s.servers) {
		wg.Go(srv.stop)
	}
	wg.Wait()
}

// run carries out a command.
func (s *stackServers) run(ctx context.Context, c command) report {
	r := report{Seq: c.Seq}
	srv := s.servers[c.Part]
	switch c.Op {
	case "kill":
		srv.kill()
	case "restart":
		srv.kill()
		if err := srv.start(ctx); err != nil {
			r.Error = err.Error()
		}
		r.PID = srv.info().PID
	default:
		r.Error = fmt.Sprintf("unknown command %q", c.Op)
	}
	return r
}

// find climbs the ladder for one part. It downloads what is needed, but starts nothing.
func find(ctx context.Context, part string, cfg Config, dir string, note func(string, ...any)) (server, error) {
	if !cfg.Private {
		if srv := fromEnv(part); srv != nil {
			return srv, nil
		}
	}
	switch {
	case part == Redis:
		return findRedis(cfg.RedisConfig, dir)
	case part == Postgres:
		return findPostgres(ctx, cfg.PostgresConfig, dir, note)
	case part == PgBouncer:
		return findPgBouncer(dir)
	case cfg.Apache:
		return findApache(ctx, dir, note)
	default:
		return &kfakeServer{dir: dir}, nil
	}
}
