package redistest

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	masters = 3
	slots   = 16384
	// quietTimeout is how long a node may be silent until it is taken for dead: so long
	// that a busy machine does not make a failover that no test asked for.
	quietTimeout = 30 * time.Second
)

// A Cluster is a Redis cluster of three masters with one replica each.
type Cluster struct {
	Nodes []*Server // the masters first, then a replica of each, as they were at the start

	t       testing.TB
	clients []*redis.Client // of the nodes
}

// StartCluster starts a cluster and returns when all nodes agree that it works.
func StartCluster(t testing.TB) *Cluster {
	t.Helper()
	c := &Cluster{t: t}
	for range 2 * masters {
		n := start(t, func(port int, dir string) []string {
			return []string{
				"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", dir, "--save", "", "--appendonly", "no",
				"--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf",
				"--cluster-node-timeout", strconv.Itoa(int(quietTimeout.Milliseconds())),
				"--cluster-replica-validity-factor", "0", // a replica may always stand for election
				"--repl-diskless-sync-delay", "0",
			}
		})
		c.Nodes, c.clients = append(c.Nodes, n), append(c.clients, n.Client())
	}
	for i := range masters {
		args := []any{"CLUSTER", "ADDSLOTS"}
		for slot := i * slots / masters; slot < (i+1)*slots/masters; slot++ {
			args = append(args, slot)
		}
		c.Nodes[i].do(c.clients[i], args...)
	}
	for i, n := range c.Nodes {
		n.do(c.clients[i], "CLUSTER", "SET-CONFIG-EPOCH", i+1)
		n.do(c.clients[i], "CLUSTER", "MEET", "127.0.0.1", c.Nodes[0].Port)
	}
	ctx := context.Background()
	await(t, "all nodes to know each other", func() error {
		for i := range c.Nodes {
			nodes, err := c.clients[i].ClusterNodes(ctx).Result()
			if err != nil {
				return err
			}
			if strings.Count(nodes, "\n") != len(c.Nodes) || strings.Contains(nodes, "handshake") {
				return fmt.Errorf("node %d knows:\n%s", i, nodes)
			}
		}
		return nil
	})
	for i := range masters {
		id := c.Nodes[i].do(c.clients[i], "CLUSTER", "MYID")
		c.Nodes[masters+i].do(c.clients[masters+i], "CLUSTER", "REPLICATE", id)
	}
	await(t, "the cluster to work", func() error {
		for i := range c.Nodes {
			info, err := c.clients[i].ClusterInfo(ctx).Result()
			if err != nil || !strings.Contains(info, "cluster_state:ok") {
				return fmt.Errorf("node %d: %v, %s", i, err, info)
			}
			if i < masters {
				continue
			}
			if err := linkUp(c.clients[i]); err != nil {
				return fmt.Errorf("node %d: %w", i, err)
			}
		}
		return nil
	})
	return c
}

// linkUp says why a replica is not up to date with its master, if so.
func linkUp(replica *redis.Client) error {
	info, err := replica.Info(context.Background(), "replication").Result()
	if err == nil && !strings.Contains(info, "master_link_status:up") {
		err = fmt.Errorf("no link to the master:\n%s", info)
	}
	return err
}

// Client returns a new client of the cluster, closed when the test ends. change may be
// nil.
func (c *Cluster) Client(change func(*redis.ClusterOptions)) *redis.ClusterClient {
	opts := &redis.ClusterOptions{}
	for _, n := range c.Nodes {
		opts.Addrs = append(opts.Addrs, n.Addr)
	}
	if change != nil {
		change(opts)
	}
	rdb := redis.NewClusterClient(opts)
	c.t.Cleanup(func() { rdb.Close() })
	return rdb
}

// Masters returns the nodes that were masters at the start.
func (c *Cluster) Masters() []*Server { return c.Nodes[:masters] }

// MasterOf returns the node that had the key's slot at the start.
func (c *Cluster) MasterOf(key string) *Server {
	c.t.Helper()
	slot, err := c.clients[0].ClusterKeySlot(context.Background(), key).Result()
	if err != nil {
		c.t.Fatal(err)
	}
	for i := range masters {
		if int(slot) < (i+1)*slots/masters {
			return c.Nodes[i]
		}
	}
	panic("slot out of range")
}

// SetNodeTimeout sets how long a node may be silent until a failover begins. It is long
// at the start.
func (c *Cluster) SetNodeTimeout(d time.Duration) {
	c.t.Helper()
	for i, n := range c.Nodes {
		n.do(c.clients[i], "CONFIG", "SET", "cluster-node-timeout", d.Milliseconds())
	}
}
