package redistest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// MasterName is the name under which sentinels know the master.
const MasterName = "onceward"

// A Sentinel is a master with two replicas, watched by three sentinels.
type Sentinel struct {
	Master   *Server // at the start
	Replicas []*Server

	t         testing.TB
	sentinels []*Server
	clients   []*redis.Client // of the sentinels
}

// StartSentinel starts all of it and returns when the sentinels know each other and the
// replicas.
func StartSentinel(t testing.TB) *Sentinel {
	t.Helper()
	s := &Sentinel{t: t}
	data := func(more ...string) *Server {
		return start(t, func(port int, dir string) []string {
			args := []string{
				"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", dir, "--save", "", "--appendonly", "no",
				"--repl-diskless-sync-delay", "0",
			}
			return append(args, more...)
		})
	}
	s.Master = data()
	for range 2 {
		s.Replicas = append(s.Replicas, data("--replicaof", "127.0.0.1 "+strconv.Itoa(s.Master.Port)))
	}
	for _, r := range s.Replicas {
		c := r.Client()
		await(t, "a replica to follow", func() error { return linkUp(c) })
	}
	for range 3 {
		n := start(t, func(port int, dir string) []string {
			conf := filepath.Join(dir, "sentinel.conf") // sentinels keep their state in it
			text := fmt.Sprintf("port %d\nbind 127.0.0.1\ndir %s\nsentinel monitor %s 127.0.0.1 %d 2\nsentinel down-after-milliseconds %s %d\n",
				port, dir, MasterName, s.Master.Port, MasterName, quietTimeout.Milliseconds())
			if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			return []string{conf, "--sentinel"}
		})
		s.sentinels, s.clients = append(s.sentinels, n), append(s.clients, n.Client())
	}
	await(t, "the sentinels to know each other", func() error {
		for _, c := range s.clients {
			info, err := c.Info(context.Background(), "sentinel").Result()
			if err != nil {
				return err
			}
			if !strings.Contains(info, "slaves=2,sentinels=3") {
				return fmt.Errorf("one knows:\n%s", info)
			}
		}
		return nil
	})
	return s
}

// Client returns a new client that asks the sentinels for the master, closed when the
// test ends. change may be nil.
func (s *Sentinel) Client(change func(*redis.FailoverOptions)) *redis.Client {
	opts := &redis.FailoverOptions{MasterName: MasterName}
	for _, n := range s.sentinels {
		opts.SentinelAddrs = append(opts.SentinelAddrs, n.Addr)
	}
	if change != nil {
		change(opts)
	}
	rdb := redis.NewFailoverClient(opts)
	s.t.Cleanup(func() { rdb.Close() })
	return rdb
}

// SetDownAfter sets how long the master may be silent until a failover begins. It is long
// at the start.
func (s *Sentinel) SetDownAfter(d time.Duration) {
	s.t.Helper()
	for i, n := range s.sentinels {
		n.do(s.clients[i], "SENTINEL", "SET", MasterName, "down-after-milliseconds", d.Milliseconds(), "failover-timeout", (3 * d).Milliseconds())
	}
}
