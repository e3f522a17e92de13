package devstack

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// startUp runs the up command with TMPDIR in tmp and returns it once it says that all
// parts answer.
func startUp(t *testing.T, attr *syscall.SysProcAttr, args ...string) *exec.Cmd {
	t.Helper()
	bin, err := upBinary()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(bin, args...)
	cmd.Dir = "/"
	cmd.SysProcAttr = attr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() }) // if the test fails half-way
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		cmd.Wait()
		t.Fatalf("up ended with %v after %q\n%s", cmd.ProcessState, line, stderr.String())
	}
	return cmd
}

// SIGKILL of the parent ends everything within 10 seconds, whoever runs it.
func TestUp_KilledParentLeavesNothing(t *testing.T) {
	clearEnv(t)
	users := map[string]*syscall.SysProcAttr{"caller": nil}
	if os.Geteuid() == 0 {
		users["nobody"] = asUser(65534, 65534)
	}
	for name, attr := range users {
		t.Run(name, func(t *testing.T) {
			tmp := tempHome(t)
			cmd := startUp(t, attr)
			pids := stackPIDs(t, tmp)
			if len(pids) != 3 {
				t.Fatalf("processes = %v, want Redis, Postgres and the supervisor", pids)
			}
			for _, pid := range pids {
				if !alive(pid) {
					t.Fatalf("process %d does not run before the kill", pid)
				}
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			cmd.Wait()
			eventually(t, 10*time.Second, fmt.Sprintf("processes %v and the folder are gone", pids), func() bool {
				return !slices.ContainsFunc(pids, alive) && len(entries(t, tmp)) == 0
			})
		})
	}
}

// Ctrl-C goes to the parent's whole process group. The servers must still answer a parent
// that shuts down.
func TestUp_GroupSignalSparesServers(t *testing.T) {
	clearEnv(t)
	tmp := tempHome(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("DEVSTACK_TEST_ASK_ON_INTERRUPT", "1")
	cmd := startUp(t, &syscall.SysProcAttr{Setpgid: true}, "-only", "redis", "--", exe, "-test.run=^TestAskOnInterrupt$")
	if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != 7 {
		t.Errorf("exit code = %d, want 7 of the command that reached Redis after the signal", got)
	}
	if names := entries(t, tmp); len(names) != 0 {
		t.Errorf("%v is left behind", names)
	}
}

func TestUp_EndsOnSignal(t *testing.T) {
	tests := []struct {
		name string
		sig  syscall.Signal
		args []string
		want int
	}{
		{"alone", syscall.SIGINT, nil, 0},
		{"SIGTERM is the command's to answer", syscall.SIGTERM, []string{"--", "sh", "-c", `trap "exit 5" TERM; echo ready; while :; do sleep 0.05; done`}, 5},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			clearEnv(t)
			tmp := tempHome(t)
			cmd := startUp(t, nil, append([]string{"-only", "redis"}, tt.args...)...)
			if err := cmd.Process.Signal(tt.sig); err != nil {
				t.Fatal(err)
			}
			cmd.Wait()
			if got := cmd.ProcessState.ExitCode(); got != tt.want {
				t.Errorf("exit code = %d, want %d", got, tt.want)
			}
			if names := entries(t, tmp); len(names) != 0 {
				t.Errorf("%v is left behind", names)
			}
		})
	}
}

// TestAskOnInterrupt is the command of TestUp_GroupSignalSparesServers.
func TestAskOnInterrupt(t *testing.T) {
	if os.Getenv("DEVSTACK_TEST_ASK_ON_INTERRUPT") == "" {
		t.Skip("runs as the command of another test")
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt)
	fmt.Println("waiting")
	<-signals
	// Ten times, so that a supervisor that got the signal too has the time to act on it.
	for range 10 {
		if err := askRedis(context.Background(), os.Getenv(EnvRedis)); err != nil {
			fmt.Println(err)
			os.Exit(8)
		}
		time.Sleep(20 * time.Millisecond)
	}
	os.Exit(7)
}

// A supervisor that is killed takes the servers with it (on Linux), and the next start
// removes its folder.
func TestSupervisor_Killed(t *testing.T) {
	clearEnv(t)
	tmp := tempHome(t)
	s, err := Start(t.Context(), Config{Redis: true, Postgres: true, RedisConfig: RedisConfig{Real: true}})
	if errors.Is(err, ErrMissing) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	pids := stackPIDs(t, tmp)
	if err := s.sup.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("Close = %v, want an error that says that the supervisor was killed", err)
	}
	if _, err := os.Stat(s.Dir); err != nil {
		t.Fatalf("the folder is gone already: %v", err)
	}
	next := start(t, Config{Redis: true})
	if names := entries(t, tmp); len(names) != 1 || names[0] != filepath.Base(next.Dir) {
		t.Errorf("folders = %v, want only that of the next stack", names)
	}
	eventually(t, 10*time.Second, fmt.Sprintf("processes %v are gone", pids), func() bool {
		return !slices.ContainsFunc(pids, alive)
	})
}

func TestSupervisor_Terminated(t *testing.T) {
	clearEnv(t)
	tmp := tempHome(t)
	s := start(t, Config{Kafka: true})
	if err := s.sup.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, "the folder is gone", func() bool { return len(entries(t, tmp)) == 0 })
	if _, err := s.Restart(t.Context(), Kafka); err == nil {
		t.Error("Restart succeeds without a supervisor")
	}
}

// hangingInitdb puts an initdb in PG_BIN that hangs, and returns a function that waits
// until it runs and returns its process id.
func hangingInitdb(t *testing.T) (started func() int) {
	t.Helper()
	dir := tempHome(t)
	bin := filepath.Join(dir, "bin")
	fifo := filepath.Join(bin, "started")
	script := "#!/bin/sh\necho $$ > " + fifo + "\nsleep 1000\n"
	err := errors.Join(
		os.Mkdir(bin, 0o755),
		os.WriteFile(filepath.Join(bin, "initdb"), []byte(script), 0o755),
		os.WriteFile(filepath.Join(bin, "postgres"), []byte(script), 0o755),
		syscall.Mkfifo(fifo, 0o666),
		os.Chmod(fifo, 0o666), // whatever the umask: initdb may run as another user
	)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PG_BIN", bin)
	return func() int {
		text, err := os.ReadFile(fifo) // waits for the writer
		if err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		return pid
	}
}

func TestStart_CancelledHalfWay(t *testing.T) {
	clearEnv(t)
	started := hangingInitdb(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	why := errors.New("changed my mind")
	var initdb int
	var wg sync.WaitGroup
	wg.Go(func() {
		initdb = started()
		cancel(why)
	})
	// Redis is up by then, Postgres never will be.
	_, err := Start(ctx, Config{Redis: true, Postgres: true})
	wg.Wait()
	if !errors.Is(err, why) {
		t.Errorf("Start = %v, want the cause of the cancellation", err)
	}
	if alive(initdb) {
		t.Errorf("initdb (process %d) still runs", initdb)
	}
	if names := entries(t, os.Getenv("TMPDIR")); !slices.Equal(names, []string{"bin"}) {
		t.Errorf("%v is left behind, want only this test's folder", names)
	}
}

func TestStart_SupervisorDies(t *testing.T) {
	clearEnv(t)
	started := hangingInitdb(t)
	var initdb int
	var wg sync.WaitGroup
	wg.Go(func() {
		initdb = started()
		syscall.Kill(parentOf(t, initdb), syscall.SIGKILL)
	})
	_, err := Start(t.Context(), Config{Postgres: true})
	wg.Wait()
	if err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("Start = %v, want an error that says that the supervisor was killed", err)
	}
	eventually(t, 10*time.Second, "initdb is gone", func() bool { return !alive(initdb) })
}

func TestStack_CloseFromManySides(t *testing.T) {
	clearEnv(t)
	tmp := tempHome(t)
	s := start(t, Config{Kafka: true})
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if names := entries(t, tmp); len(names) != 0 {
				t.Errorf("Close returned, but %v is still there", names)
			}
		})
	}
	wg.Wait()
	if err := s.Kill(t.Context(), Kafka); err == nil {
		t.Error("Kill succeeds on a closed stack")
	}
}

// A call that gave up must not leave its reply to the next one.
func TestStack_CallGivesUp(t *testing.T) {
	clearEnv(t)
	s := start(t, Config{Kafka: true, Redis: true, RedisConfig: RedisConfig{Real: true}})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Restart(ctx, Redis); !errors.Is(err, context.Canceled) {
		t.Fatalf("Restart = %v, want the end of ctx", err)
	}
	pid, err := s.Restart(t.Context(), Kafka)
	if err != nil || pid != s.Parts[Kafka].PID {
		t.Errorf("Restart = %d, %v, want kfake's process %d, not the answer about Redis", pid, err, s.Parts[Kafka].PID)
	}
}

func TestSupervise_NoConfig(t *testing.T) {
	if got := supervise(strings.NewReader("nonsense\n"), io.Discard); got != 2 {
		t.Errorf("exit code = %d, want 2", got)
	}
}
