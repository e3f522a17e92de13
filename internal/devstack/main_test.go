package devstack

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if dir := upDir; dir != "" {
			os.RemoveAll(dir)
		}
		os.Exit(code)
	}))
}

var (
	realTemp = tempDir() // tests set TMPDIR
	upDir    string
)

// upBinary builds the command once per test binary, where every user may run it.
var upBinary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp(realTemp, "devstack-up-")
	if err != nil {
		return "", err
	}
	upDir = dir
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", err
	}
	bin := filepath.Join(dir, "up")
	if out, err := exec.Command("go", "build", "-o", bin, "./cmd/up").CombinedOutput(); err != nil {
		return "", fmt.Errorf("build up: %w\n%s", err, out)
	}
	return bin, nil
})

// tempHome makes a folder that every user may write to and sets TMPDIR to it, so that the
// test can look at everything that stacks leave there.
func tempHome(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp(tempDir(), "devstack-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", dir)
	return dir
}

// start starts a stack and closes it when the test ends.
func start(t *testing.T, cfg Config) *Stack {
	t.Helper()
	cfg.Progress = func(line string) { t.Log(line) }
	s, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// hidePATH leaves only the named programs on PATH.
func hidePATH(t *testing.T, keep ...string) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range keep {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Skip(err)
		}
		if err := os.Symlink(path, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
}

// clearEnv makes the test independent of the caller's servers.
func clearEnv(t *testing.T) {
	for _, name := range []string{EnvKafka, EnvRedis, EnvPostgres, "PG_BIN", "ONCEWARD_KAFKA", "ONCEWARD_POSTGRES"} {
		t.Setenv(name, "")
	}
}

// alive reports whether a process exists and is not merely waiting to be reaped.
func alive(pid int) bool {
	out, err := exec.Command("ps", "-o", "stat=", "-p", strconv.Itoa(pid)).Output()
	return err == nil && !strings.HasPrefix(strings.TrimSpace(string(out)), "Z")
}

func parentOf(t *testing.T, pid int) int {
	t.Helper()
	out, err := exec.Command("ps", "-o", "ppid=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		t.Fatalf("parent of %d: %v", pid, err)
	}
	ppid, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		t.Fatal(err)
	}
	return ppid
}

// eventually waits for something in other processes, of which nobody tells us.
func eventually(t *testing.T, within time.Duration, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(within); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", within, what)
		}
	}
}

// entries returns the names in a folder.
func entries(t *testing.T, dir string) []string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// stackPIDs returns the processes of the one stack in a TMPDIR: the servers that are
// processes of their own, and their supervisor.
func stackPIDs(t *testing.T, tmp string) (pids []int) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(tmp, folderPrefix+"*", "pid-*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no server is noted under %s: %v", tmp, err)
	}
	for _, f := range files {
		_, n, _ := strings.Cut(filepath.Base(f), "-")
		pid, err := strconv.Atoi(n)
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return append(pids, parentOf(t, pids[0]))
}

func asUser(uid, gid uint32) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid}}
}
