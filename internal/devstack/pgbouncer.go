package devstack

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// PgBouncerDatabases is the file in the part's folder, [Stack.Dir] and the part's name,
// that lists databases: a line "name = host=... port=..." each. After a change it is read
// again with the command RELOAD at the part's URL, the admin console.
const PgBouncerDatabases = "databases.ini"

// pgBouncerServer is a PgBouncer in transaction mode. It is told which databases there
// are by whoever uses it.
type pgBouncerServer struct {
	daemon
	bin      string
	password string
	version  string
}

func findPgBouncer(dir string) (server, error) {
	for _, name := range []string{"pgbouncer", "/usr/sbin/pgbouncer"} { // sbin may not be on PATH
		if bin, err := exec.LookPath(name); err == nil {
			return newPgBouncer(bin, filepath.Join(dir, PgBouncer))
		}
	}
	return nil, &missingError{what: "install PgBouncer (Debian: apt-get install pgbouncer; macOS: brew install pgbouncer)"}
}

func newPgBouncer(bin, dir string) (*pgBouncerServer, error) {
	s := &pgBouncerServer{bin: bin, password: rand.Text()}
	cred := postgresUser() // it refuses to run as root, as Postgres does
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	for name, text := range map[string]string{"users.txt": fmt.Sprintf("%q %q\n", pgBouncerUser, s.password), PgBouncerDatabases: ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	if cred != nil {
		if err := os.Chown(dir, int(cred.Uid), int(cred.Gid)); err != nil {
			return nil, err
		}
	}
	s.daemon = daemon{
		dir:    dir,
		cred:   cred,
		nPorts: 1,
		command: func(ports []int) *exec.Cmd {
			cmd := exec.Command("sh", "-c", `printf '%s' "$2" >pgbouncer.ini && exec "$1" pgbouncer.ini`, "sh", bin, pgBouncerSettings(ports[0]))
			cmd.Dir = dir
			return cmd
		},
		ready:    s.ready,
		stops:    []stopSignal{{syscall.SIGTERM, 2 * time.Second}}, // at once, whoever is connected
		orphaned: syscall.SIGKILL,
	}
	return s, nil
}

const pgBouncerUser = "onceward"

// pgBouncerSettings are those of a harsh pooler: the next transaction of a client gets
// another connection than the last one, if there is one.
func pgBouncerSettings(port int) string {
	return strings.Join([]string{
		"[databases]",
		"%include " + PgBouncerDatabases,
		"[pgbouncer]",
		"listen_addr = 127.0.0.1",
		"listen_port = " + strconv.Itoa(port),
		"unix_socket_dir =",
		"auth_type = md5",
		"auth_file = users.txt",
		"admin_users = " + pgBouncerUser,
		"pool_mode = transaction",
		"server_round_robin = 1",
		"default_pool_size = 50",
		"max_client_conn = 1000",
		"ignore_startup_parameters = extra_float_digits",
		"log_connections = 0",
		"log_disconnections = 0",
		"",
	}, "\n")
}

// ready needs no look at the process id: only our server knows the password.
func (s *pgBouncerServer) ready(ctx context.Context, ports []int, _ int) error {
	db, err := sql.Open("postgres", s.url(ports[0]))
	if err != nil {
		return err
	}
	defer db.Close()
	return db.QueryRowContext(ctx, "SHOW VERSION").Scan(&s.version)
}

func (s *pgBouncerServer) url(port int) string {
	return fmt.Sprintf("postgres://%s:%s@%s/pgbouncer?sslmode=disable", pgBouncerUser, s.password, addr(port))
}

func (s *pgBouncerServer) info() Part {
	return Part{URL: s.url(s.ports[0]), Rung: fmt.Sprintf("%s in %s", s.version, filepath.Dir(s.bin)), PID: s.pid()}
}
