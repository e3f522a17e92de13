package devtest

import (
	"context"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/devstack"
	"github.com/redis/go-redis/v9"
)

// A Server is a server of one test, which may kill and pause it. Its methods fail the
// test if they do not succeed, so they are for the test's own goroutine.
type Server struct {
	URL  string
	Addr string // host:port

	t     testing.TB
	stack *devstack.Stack
	part  string

	mu  sync.Mutex
	pid int
}

// OwnRedis starts a redis-server for this test alone, with args added to its command line
// ("--appendonly", "yes"). It never is miniredis: without redis-server the test is
// skipped, or fails (see the package comment).
func OwnRedis(t testing.TB, args ...string) *Server {
	t.Helper()
	return own(t, devstack.Redis, devstack.Config{Redis: true, RedisConfig: devstack.RedisConfig{Real: true, Args: args}})
}

// OwnPostgres starts a Postgres for this test alone.
func OwnPostgres(t testing.TB, cfg devstack.PostgresConfig) *Server {
	t.Helper()
	return own(t, devstack.Postgres, devstack.Config{Postgres: true, PostgresConfig: cfg})
}

func own(t testing.TB, part string, cfg devstack.Config) *Server {
	t.Helper()
	stack := Start(t, cfg)
	p := stack.Parts[part]
	return &Server{
		URL:   p.URL,
		Addr:  hostPort(p.URL),
		t:     t,
		stack: stack,
		part:  part,
		pid:   p.PID,
	}
}

// hostPort returns the host:port of scheme://user:password@host:port/path.
func hostPort(url string) string {
	_, rest, _ := strings.Cut(url, "://")
	rest, _, _ = strings.Cut(rest, "/")
	return rest[strings.LastIndex(rest, "@")+1:]
}

// Client returns a new Redis client of the server, closed when the test ends.
func (s *Server) Client() *redis.Client {
	s.t.Helper()
	return redisClient(s.t, s.URL)
}

// PID returns the server's process id. It changes with Restart.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pid
}

// Signal sends sig to the server's process: SIGSTOP pauses a Redis. The other processes
// of a Postgres do not get it.
func (s *Server) Signal(sig syscall.Signal) {
	s.t.Helper()
	if err := syscall.Kill(s.PID(), sig); err != nil {
		s.t.Fatalf("send %v to %s: %v", sig, s.part, err)
	}
}

// Kill ends the server as a crash does and returns when it is gone.
func (s *Server) Kill() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), restartWithin)
	defer cancel()
	if err := s.stack.Kill(ctx, s.part); err != nil {
		s.t.Fatal(err)
	}
}

// Restart kills the server, if it still runs, starts it again at the same address with
// what it had on disk, and returns when it answers.
func (s *Server) Restart() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), restartWithin)
	defer cancel()
	pid, err := s.stack.Restart(ctx, s.part)
	if err != nil {
		s.t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pid = pid
}

// restartWithin bounds a restart. A Postgres may have to recover first.
const restartWithin = time.Minute
