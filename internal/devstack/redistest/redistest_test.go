package redistest

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// A client whose server was killed looks for it in a goroutine that notices Close up
	// to a second later.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

func plain(t *testing.T) *Server {
	return start(t, func(port int, dir string) []string {
		return []string{"--port", fmt.Sprint(port), "--bind", "127.0.0.1", "--dir", dir, "--save", ""}
	})
}

// TestChild is the process that is killed by the test below.
func TestChild(t *testing.T) {
	if os.Getenv("REDISTEST_CHILD") == "" {
		t.Skip("only for TestServer_EndsWithTheTestProcess")
	}
	s := plain(t)
	fmt.Printf("server %d %s\n", s.process.Pid, s.dir)
	select {} // until killed
}

func TestServer_EndsWithTheTestProcess(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "-test.run=^TestChild$")
	cmd.Env = append(os.Environ(), "REDISTEST_CHILD=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	var dir string
	for lines := bufio.NewScanner(out); pid == 0 && lines.Scan(); {
		fmt.Sscanf(lines.Text(), "server %d %s", &pid, &dir)
	}
	if pid == 0 || syscall.Kill(pid, 0) != nil {
		t.Fatalf("the child has no server: pid %d", pid)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	await(t, "the end of the server", func() error {
		if syscall.Kill(pid, 0) == nil {
			// Without an init process that collects it, it stays as a zombie.
			if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err != nil || !strings.Contains(string(stat), ") Z ") {
				return fmt.Errorf("process %d runs", pid)
			}
		}
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			return fmt.Errorf("%s is there", dir)
		}
		return nil
	})
}

func TestServer_Kill(t *testing.T) {
	s := plain(t)
	c := s.Client()
	s.Signal(syscall.SIGSTOP) // a paused one ends as well
	s.Kill()
	if err := c.Ping(t.Context()).Err(); err == nil {
		t.Error("it answers")
	}
}

func TestServer_LogOfOneThatDoesNotStart(t *testing.T) {
	bin, err := exec.LookPath("redis-server")
	if err != nil {
		t.Skip(err)
	}
	_, err = startAt(t, bin, freePort(t), func(int, string) []string { return []string{"--no-such-setting", "1"} })
	if err == nil || !strings.Contains(err.Error(), "no-such-setting") {
		t.Errorf("start = %v, want the server's words", err)
	}
}

// client asks once, and waits for the answer for as long as timeout says.
func client(t *testing.T, addr string, timeout time.Duration) *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, ReadTimeout: timeout, DialerRetries: 1})
	t.Cleanup(func() { c.Close() })
	return c
}

func TestProxy_DropsReplies(t *testing.T) {
	s := plain(t)
	p := NewProxy(t, s.Addr, func(args []string) Fault {
		return Fault{Drop: slices.Equal(args, []string{"incr", "n"})}
	})
	c := client(t, p.Addr, -1)
	if err := c.Set(t.Context(), "n", "1", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if err := c.Incr(t.Context(), "n").Err(); err == nil {
		t.Error("the reply was not dropped")
	}
	if got := c.Get(t.Context(), "n").Val(); got != "2" {
		t.Errorf("n = %q, want 2: the command takes effect before the connection is cut", got)
	}
	// What comes later in a pipeline is never sent.
	cmds, err := c.Pipelined(t.Context(), func(pipe redis.Pipeliner) error {
		pipe.Set(t.Context(), "a", "1", 0)
		pipe.Incr(t.Context(), "n")
		pipe.Set(t.Context(), "b", "1", 0)
		return nil
	})
	if err == nil || cmds[1].Err() == nil || cmds[2].Err() == nil {
		t.Errorf("pipeline = %v, %v, want the second and the third to fail", cmds, err)
	}
	if got := s.Client().MGet(t.Context(), "a", "n", "b").Val(); fmt.Sprint(got) != "[1 3 <nil>]" {
		t.Errorf("a, n, b = %v, want 1 3 <nil>", got)
	}
}

func TestProxy_LateCommand(t *testing.T) {
	s := plain(t)
	p := NewProxy(t, s.Addr, func(args []string) Fault {
		if args[0] == "append" {
			return Fault{Late: 300 * time.Millisecond}
		}
		return Fault{}
	})
	c := client(t, p.Addr, -1)
	if err := c.Append(t.Context(), "s", "late").Err(); err == nil {
		t.Error("a late command was answered")
	}
	if got := c.Get(t.Context(), "s").Val(); got != "" {
		t.Errorf("s = %q before its time", got)
	}
	await(t, "the late command", func() error {
		if got := c.Get(t.Context(), "s").Val(); got != "late" {
			return fmt.Errorf("s = %q", got)
		}
		return nil
	})
}

func TestProxy_HoldCutTurn(t *testing.T) {
	s, other := plain(t), plain(t)
	p := NewProxy(t, s.Addr, nil)
	c := client(t, p.Addr, 100*time.Millisecond)
	if err := c.Set(t.Context(), "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	p.Hold()
	p.Hold()
	if err := c.Set(t.Context(), "k", "held", 0).Err(); err == nil {
		t.Error("answered through a black hole")
	}
	if got := s.Client().Get(t.Context(), "k").Val(); got != "v" {
		t.Errorf("k = %q, want v: it passed the black hole", got)
	}
	p.Release()
	p.Release()
	await(t, "what was held back", func() error {
		if got := s.Client().Get(context.Background(), "k").Val(); got != "held" {
			return fmt.Errorf("k = %q", got)
		}
		return nil
	})
	patient := client(t, p.Addr, -1)
	stuck := make(chan error, 1)
	p.Hold()
	go func() { stuck <- patient.Ping(context.Background()).Err() }()
	select {
	case err := <-stuck:
		t.Errorf("answered through a black hole: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	p.Release()
	if err := <-stuck; err != nil {
		t.Errorf("after the black hole: %v", err)
	}
	p.Turn(other.Addr)
	// The client may notice the cut by a failed call.
	await(t, "the new target", func() error { return patient.Set(context.Background(), "k", "new", 0).Err() })
	if got := other.Client().Get(t.Context(), "k").Val(); got != "new" {
		t.Errorf("k on the new target = %q, want new", got)
	}
}

// A failover of the cluster and one by Sentinel: the clients find the new master.
func TestFailover(t *testing.T) {
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		c := StartCluster(t)
		rdb := c.Client(func(o *redis.ClusterOptions) { o.ClusterStateReloadInterval = time.Second })
		set(t, rdb)
		c.SetNodeTimeout(time.Second)
		c.MasterOf("k").Kill()
		set(t, rdb)
	})
	t.Run("sentinel", func(t *testing.T) {
		t.Parallel()
		s := StartSentinel(t)
		rdb := s.Client(nil)
		set(t, rdb)
		s.SetDownAfter(time.Second)
		s.Master.Kill()
		set(t, rdb)
	})
}

func set(t *testing.T, rdb redis.UniversalClient) {
	t.Helper()
	await(t, "a master", func() error { return rdb.Set(context.Background(), "k", "v", 0).Err() })
}
