package redistest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/devstack"
	"github.com/redis/go-redis/v9"
)

// readyWithin bounds all waiting for servers to come up or to agree.
const readyWithin = time.Minute

// A Server is one redis-server process.
type Server struct {
	Addr string // host:port
	Port int

	t       testing.TB
	dir     string
	process *os.Process
	ended   chan struct{} // closed when the process is gone
}

// start starts a redis-server on a free port. args may use the port, and files in dir.
func start(t testing.TB, args func(port int, dir string) []string) *Server {
	t.Helper()
	bin, err := exec.LookPath("redis-server")
	if err != nil {
		bin, err = exec.LookPath("valkey-server")
	}
	if err != nil {
		err = fmt.Errorf("%w: install redis-server or valkey-server", devstack.ErrMissing)
		if os.Getenv("ONCEWARD_REQUIRE") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	// Between the look at a port and its use somebody else may take it.
	for try := 1; ; try++ {
		s, err := startAt(t, bin, freePort(t), args)
		if err == nil {
			return s
		}
		if try == 5 {
			t.Fatal(err)
		}
	}
}

func startAt(t testing.TB, bin string, port int, args func(port int, dir string) []string) (*Server, error) {
	dir, err := os.MkdirTemp("", "onceward-redistest-")
	if err != nil {
		return nil, err
	}
	s := &Server{Addr: "127.0.0.1:" + strconv.Itoa(port), Port: port, t: t, dir: dir, ended: make(chan struct{})}
	log, err := os.Create(s.logPath())
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(bin, args(port, dir)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for the test
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	s.process = cmd.Process
	reaper, err := startReaper(cmd.Process.Pid, dir)
	go func() {
		_ = cmd.Wait() // killed, most likely
		close(s.ended)
	}()
	end := func() {
		_ = s.process.Kill() // it may be gone
		<-s.ended
		if reaper != nil {
			reaper.end()
		}
		os.RemoveAll(dir)
	}
	if err == nil {
		err = s.awaitReady()
	}
	if err != nil {
		end()
		return nil, err
	}
	t.Cleanup(end)
	return s, nil
}

// A reaper kills a server and removes its folder when this process is gone. It notices
// by the end of a pipe, which comes whatever way a process ends.
type reaper struct {
	cmd  *exec.Cmd
	pipe io.Closer
}

func startReaper(pid int, dir string) (*reaper, error) {
	cmd := exec.Command("sh", "-c", `read -r _; kill -9 "$1"; rm -rf "$2"`, "sh", strconv.Itoa(pid), dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	return &reaper{cmd, pipe}, cmd.Start()
}

// end ends the reaper first, then the pipe: the number of the process may be
// somebody else's by now.
func (r *reaper) end() {
	_ = r.cmd.Process.Kill()
	_ = r.cmd.Wait()
	_ = r.pipe.Close()
}

// awaitReady waits until it is this process that answers on the port.
func (s *Server) awaitReady() error {
	c := redis.NewClient(&redis.Options{Addr: s.Addr, MaxRetries: -1, DialerRetries: 1})
	defer c.Close()
	want := fmt.Sprintf("process_id:%d\r\n", s.process.Pid)
	return poll(func() error {
		select {
		case <-s.ended:
			return final{fmt.Errorf("redis-server ended, its log:\n%s", s.log())}
		default:
		}
		info, err := c.Info(context.Background(), "server").Result()
		if err == nil && !strings.Contains(info, want) {
			err = fmt.Errorf("another server listens on %s", s.Addr)
		}
		return err
	})
}

// Client returns a new client of this server, closed when the test ends.
func (s *Server) Client() *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: s.Addr})
	s.t.Cleanup(func() { c.Close() })
	return c
}

// Kill ends the server as a crash does and returns when it is gone. It stays down.
func (s *Server) Kill() {
	s.t.Helper()
	if err := s.process.Kill(); err != nil {
		s.t.Fatalf("kill the server on %s: %v", s.Addr, err)
	}
	<-s.ended
}

// Signal sends sig to the server: SIGSTOP pauses it.
func (s *Server) Signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.process.Signal(sig); err != nil {
		s.t.Fatalf("send %v to the server on %s: %v", sig, s.Addr, err)
	}
}

func (s *Server) logPath() string { return filepath.Join(s.dir, "log") }

func (s *Server) log() string {
	text, err := os.ReadFile(s.logPath())
	return cmp.Or(string(text), fmt.Sprint(err))
}

// do runs a command on the server, and fails the test if it does not succeed.
func (s *Server) do(c *redis.Client, args ...any) any {
	s.t.Helper()
	v, err := c.Do(context.Background(), args...).Result()
	if err != nil {
		s.t.Fatalf("%v on %s: %v", args, s.Addr, err)
	}
	return v
}

// freePort returns a port that is free, as is the one 10000 above, which a node of a
// cluster uses as well.
func freePort(t testing.TB) int {
	t.Helper()
	for range 1000 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		port := l.Addr().(*net.TCPAddr).Port
		bus, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port+10000))
		l.Close()
		if err == nil {
			bus.Close()
			return port
		}
	}
	t.Fatal("no two free ports that are 10000 apart")
	return 0
}

// final is an error that asking again does not cure.
type final struct{ error }

// poll asks until there is no error, or for too long. Servers do not tell when they
// have agreed, so they are asked.
func poll(ask func() error) error {
	for deadline := time.Now().Add(readyWithin); ; time.Sleep(20 * time.Millisecond) {
		err := ask()
		if err == nil || errors.As(err, &final{}) || time.Now().After(deadline) {
			return err
		}
	}
}

// await is poll for a test.
func await(t testing.TB, what string, ask func() error) {
	t.Helper()
	if err := poll(ask); err != nil {
		t.Fatalf("waited for %s: %v", what, err)
	}
}
