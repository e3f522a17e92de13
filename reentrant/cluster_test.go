package reentrant_test

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/devstack/redistest"
	"github.com/onceward/onceward/reentrant"
	"github.com/onceward/onceward/reentrant/locktest"
	"github.com/redis/go-redis/v9"
)

// With the client's defaults, as an application has them.
func TestCluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	t.Run("contract", func(t *testing.T) {
		rdb := c.Client(nil)
		locktest.Run(t, func(t *testing.T) reentrant.Store { return storeOn(t, rdb) })
	})
	t.Run("several nodes in one call", func(t *testing.T) { testClusterEach(t, c) })
	t.Run("least rights", func(t *testing.T) {
		for _, n := range c.Nodes {
			setUser(t, n.Client(), minimum("", "+cluster|slots", "+command")...)
		}
		rdb := c.Client(func(o *redis.ClusterOptions) { o.Username, o.Password = "app", "secret" })
		if err := exercise(t, rdb); err != nil {
			t.Error(err)
		}
	})
	t.Run("a master dies", func(t *testing.T) { testClusterFailover(t, c) }) // the last one
}

// storeOn returns an empty store: its prefix is used by nobody else.
func storeOn(t *testing.T, rdb redis.UniversalClient) reentrant.Store {
	t.Helper()
	return storeAt(t, rdb, rand.Text())
}

func storeAt(t *testing.T, rdb redis.UniversalClient, prefix string) *reentrant.RedisStore {
	t.Helper()
	s, err := reentrant.NewRedisStore(rdb, reentrant.Config{Prefix: prefix})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// placed returns the node of each lock under the prefix.
func placed(t *testing.T, c *redistest.Cluster, prefix string) map[string]*redistest.Server {
	t.Helper()
	at := map[string]*redistest.Server{}
	for _, n := range c.Masters() {
		for _, key := range lockKeys(t, n.Client(), prefix) {
			_, name, _ := strings.Cut(key, ":lock:")
			at[name] = n
			if c.MasterOf(key) != n {
				t.Errorf("key %s is not on the node of its slot", key)
			}
		}
	}
	return at
}

// redirects counts how often a node had to send a client to another one.
func redirects(t *testing.T, c *redistest.Cluster) (n int) {
	t.Helper()
	for _, node := range c.Masters() {
		info, err := node.Client().Info(t.Context(), "errorstats").Result()
		if err != nil {
			t.Fatal(err)
		}
		if _, moved, ok := strings.Cut(info, "errorstat_MOVED:count="); ok {
			var count int
			fmt.Sscan(moved, &count)
			n += count
		}
	}
	return n
}

func names(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprint("order:", i)
	}
	return all
}

func testClusterEach(t *testing.T, c *redistest.Cluster) {
	const ttl = 3 * time.Second
	l := lockerOn(t, c.Client(nil), reentrant.Config{TTL: ttl})
	before := redirects(t, c)
	leases, errs := l.AcquireEach(t.Context(), names(40))
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	at := placed(t, c, prefixOf(t))
	nodes := map[*redistest.Server]int{}
	for _, n := range at {
		nodes[n]++
	}
	if len(at) != len(leases) || len(nodes) != 3 {
		t.Fatalf("%d locks on %d nodes, want %d on 3", len(at), len(nodes), len(leases))
	}
	_, errs = lockerOn(t, c.Client(nil), reentrant.Config{Prefix: prefixOf(t)}).AcquireEach(t.Context(), names(40))
	for i, err := range errs {
		if !errors.Is(err, reentrant.ErrBusy) {
			t.Errorf("lock %d for another locker: %v, want busy", i, err)
		}
	}
	// All of them are renewed, whatever node they are on.
	start := time.Now()
	for _, lease := range leases {
		v := &vigil{Lease: lease}
		until(t, lease.Name()+" is renewed", func() error {
			if v.renewed(ttl).Before(start) {
				return fmt.Errorf("it has %v left, %v", lease.Remaining(), lease.Context().Err())
			}
			return nil
		})
	}
	if err := errors.Join(l.ReleaseEach(t.Context(), leases)...); err != nil {
		t.Error(err)
	}
	if at := placed(t, c, prefixOf(t)); len(at) != 0 {
		t.Errorf("left in Redis: %v", at)
	}
	if n := redirects(t, c) - before; n != 0 {
		t.Errorf("%d requests went to the wrong node first", n)
	}
}

func testClusterFailover(t *testing.T, c *redistest.Cluster) {
	newLocker := func() *reentrant.Locker {
		return lockerOn(t, c.Client(nil), reentrant.Config{TTL: failoverTTL, Logger: slog.New(slog.DiscardHandler)})
	}
	l := newLocker()
	leases, errs := l.AcquireEach(t.Context(), names(60))
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	at := placed(t, c, prefixOf(t))
	if err := errors.Join(l.ReleaseEach(t.Context(), leases)...); err != nil {
		t.Fatal(err)
	}
	dying := at["order:0"]
	held, free := map[string]bool{}, map[string]bool{}
	for i, name := range names(60) {
		if i < 40 {
			held[name] = at[name] == dying
		} else {
			free[name] = at[name] == dying
		}
	}
	c.SetNodeTimeout(time.Second)
	survive(t, newLocker, held, free, dying.Kill)
}
