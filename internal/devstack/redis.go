package devstack

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// redisServer is a redis-server or valkey-server of our own.
type redisServer struct {
	daemon
	bin     string
	version string
}

func findRedis(cfg RedisConfig, dir string) (server, error) {
	for _, name := range []string{"redis-server", "valkey-server"} {
		if bin, err := exec.LookPath(name); err == nil {
			return newRedis(cfg, bin, filepath.Join(dir, "redis"))
		}
	}
	if cfg.Real || len(cfg.Args) > 0 {
		return nil, &missingError{what: "install redis-server or valkey-server (Debian: apt-get install redis-server; macOS: brew install redis)"}
	}
	return &miniRedis{}, nil
}

func newRedis(cfg RedisConfig, bin, dir string) (*redisServer, error) {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	s := &redisServer{bin: bin}
	s.daemon = daemon{
		dir:    dir,
		nPorts: 1,
		command: func(ports []int) *exec.Cmd {
			args := []string{"--port", strconv.Itoa(ports[0]), "--bind", "127.0.0.1", "--dir", dir, "--save", "", "--appendonly", "no"}
			cmd := exec.Command(bin, append(args, cfg.Args...)...)
			cmd.Dir = dir
			return cmd
		},
		ready: s.ready,
		// Nothing is saved, so there is nothing to wait for unless Args want it.
		stops:    []stopSignal{{syscall.SIGTERM, 5 * time.Second}},
		orphaned: syscall.SIGKILL,
	}
	return s, nil
}

var (
	infoPID     = regexp.MustCompile(`(?m)^process_id:(\d+)`)
	infoVersion = regexp.MustCompile(`(?m)^(?:valkey|redis)_version:(\S+)`)
)

func (s *redisServer) ready(ctx context.Context, ports []int, pid int) error {
	c := redis.NewClient(&redis.Options{Addr: addr(ports[0]), MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true})
	defer c.Close()
	info, err := c.Info(ctx, "server").Result()
	if err != nil {
		return err
	}
	// Somebody else's server may have taken the port before ours did.
	if m := infoPID.FindStringSubmatch(info); m == nil || m[1] != strconv.Itoa(pid) {
		return fmt.Errorf("another server listens on %s", addr(ports[0]))
	}
	if m := infoVersion.FindStringSubmatch(info); m != nil {
		s.version = m[1]
	}
	return nil
}

func (s *redisServer) info() Part {
	return Part{
		URL:  "redis://" + addr(s.ports[0]),
		Rung: fmt.Sprintf("%s %s in %s", filepath.Base(s.bin), s.version, filepath.Dir(s.bin)),
		PID:  s.pid(),
	}
}

// miniRedis is the stand-in, in the supervisor's process.
type miniRedis struct{ m *miniredis.Miniredis }

func (s *miniRedis) start(context.Context) error {
	if s.m != nil {
		s.m.FlushAll() // a Redis that saved nothing comes back empty
		return s.m.Restart()
	}
	s.m = miniredis.NewMiniRedis()
	s.m.ClockTTL(true) // else keys never expire
	return s.m.Start()
}

func (s *miniRedis) kill() {
	if s.m != nil {
		s.m.Close()
	}
}

func (s *miniRedis) stop() { s.kill() }

func (s *miniRedis) info() Part {
	return Part{URL: "redis://" + s.m.Addr(), Rung: "miniredis, for want of redis-server", PID: os.Getpid()}
}

func addr(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }
