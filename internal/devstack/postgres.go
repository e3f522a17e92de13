package devstack

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// postgresServer is a server on a throw-away cluster.
type postgresServer struct {
	daemon
	bin      binaries
	password string
	version  string
}

// findPostgres returns a server that can be started. Downloading, if needed, happens here.
func findPostgres(ctx context.Context, cfg PostgresConfig, dir string, note func(string, ...any)) (server, error) {
	cred := postgresUser()
	var bin binaries
	var err error
	if os.Getenv("ONCEWARD_POSTGRES") != "npm" {
		bin, err = localBinaries(ctx, cred != nil)
	}
	if err == nil && bin.dir == "" {
		bin, err = npmBinaries(ctx, note)
	}
	if err != nil {
		return nil, err
	}
	return newPostgres(cfg, bin, cred, filepath.Join(dir, "postgres"))
}

func newPostgres(cfg PostgresConfig, bin binaries, cred *syscall.Credential, dir string) (*postgresServer, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	if cred != nil {
		if err := os.Chown(dir, int(cred.Uid), int(cred.Gid)); err != nil {
			return nil, err
		}
	}
	settings := map[string]string{
		"fsync":            onOff(cfg.Fsync),
		"full_page_writes": onOff(cfg.Fsync), // only a power cut tears pages
		// Stays on: without it a mere kill of the server loses commits.
		"synchronous_commit": "on",
		"max_connections":    "300",
		"shared_buffers":     "64MB",
		"listen_addresses":   "127.0.0.1",
		// None: a path to one may be too long, and Debian's default is not writable.
		"unix_socket_directories": "",
	}
	maps.Copy(settings, cfg.Settings)

	s := &postgresServer{bin: bin, password: rand.Text()}
	s.daemon = daemon{
		dir:    dir,
		cred:   cred,
		nPorts: 1,
		command: func(ports []int) *exec.Cmd {
			args := []string{"-D", s.data(), "-p", strconv.Itoa(ports[0])}
			for _, name := range slices.Sorted(maps.Keys(settings)) {
				args = append(args, "-c", name+"="+settings[name])
			}
			return s.tool("postgres", args...)
		},
		ready: s.ready,
		stops: []stopSignal{
			{syscall.SIGINT, 5 * time.Second}, // "fast shutdown"
			{syscall.SIGQUIT, time.Second},    // "immediate shutdown"
		},
		crash:    []stopSignal{{syscall.SIGQUIT, 2 * time.Second}},
		orphaned: syscall.SIGQUIT,
	}
	return s, nil
}

func onOff(b bool) string {
	if b {
		return "on"
	}
	return "off"
}

func (s *postgresServer) data() string { return filepath.Join(s.dir, "data") }

// tool returns a command of the server's binaries with an environment that can neither
// name another cluster nor need a home folder.
func (s *postgresServer) tool(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.bin.dir, name), args...)
	cmd.Dir = s.dir // the caller's may be closed to the other user
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC", "HOME=" + s.dir}
	return cmd
}

func (s *postgresServer) start(ctx context.Context) error {
	if _, err := os.Stat(s.data()); err != nil {
		if err := s.initdb(ctx); err != nil {
			return err
		}
	}
	return s.daemon.start(ctx)
}

// initdb makes the cluster. It asks for a password, since a superuser of Postgres can run
// commands as the user that the server runs as, and others may have access to 127.0.0.1.
func (s *postgresServer) initdb(ctx context.Context) error {
	pw := filepath.Join(s.dir, "pw")
	if err := os.WriteFile(pw, []byte(s.password+"\n"), 0o600); err != nil {
		return err
	}
	defer os.Remove(pw)
	if s.cred != nil {
		if err := os.Chown(pw, int(s.cred.Uid), int(s.cred.Gid)); err != nil {
			return err
		}
	}
	// Method password, not scram-sha-256: it never leaves the machine, and a test opens
	// many connections.
	cmd := s.tool("initdb", "-D", s.data(), "-U", "postgres", "-A", "password", "--pwfile", pw, "-E", "UTF8", "--no-locale", "--no-sync")
	_, err := output(ctx, cmd, s.cred)
	return err
}

// ready needs no look at the process id: only our server knows the password.
func (s *postgresServer) ready(ctx context.Context, ports []int, _ int) error {
	db, err := sql.Open("postgres", s.url(ports[0]))
	if err != nil {
		return err
	}
	defer db.Close()
	return db.QueryRowContext(ctx, "SELECT current_setting('server_version')").Scan(&s.version)
}

func (s *postgresServer) url(port int) string {
	return fmt.Sprintf("postgres://postgres:%s@%s/postgres?sslmode=disable", s.password, addr(port))
}

func (s *postgresServer) info() Part {
	version, _, _ := strings.Cut(s.version, " ") // "15.18 (Debian ...)"
	return Part{URL: s.url(s.ports[0]), Rung: fmt.Sprintf("%s %s in %s", s.bin.kind, version, s.bin.dir), PID: s.pid()}
}

// postgresUser returns whom initdb and postgres must run as: nil for ourselves, another
// user if we are root.
func postgresUser() *syscall.Credential {
	if os.Geteuid() != 0 {
		return nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		if u, err := user.Lookup(name); err == nil {
			uid, uerr := strconv.ParseUint(u.Uid, 10, 32)
			gid, gerr := strconv.ParseUint(u.Gid, 10, 32)
			if uerr == nil && gerr == nil {
				return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
			}
		}
	}
	// No such user, as in small containers. Any number that is not root's will do.
	return &syscall.Credential{Uid: 65534, Gid: 65534}
}
