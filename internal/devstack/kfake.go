package devstack

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
)

// KfakeOpts returns the options for a kfake like the one of a stack: three brokers that
// miss a dead member of a group as soon as the Apache broker of this package does.
func KfakeOpts() []kfake.Opt {
	return []kfake.Opt{
		kfake.NumBrokers(3),
		kfake.GroupMinSessionTimeout(time.Second),
		kfake.BrokerConfigs(map[string]string{ // for next-generation groups (KIP-848)
			"group.consumer.session.timeout.ms":    "3000",
			"group.consumer.heartbeat.interval.ms": "500",
		}),
	}
}

// kfakeServer is a three-broker kfake in the supervisor's process. Its records are on
// disk, since in memory a demo's worth of them would fill the heap.
type kfakeServer struct {
	dir   string
	c     *kfake.Cluster // nil when killed
	ports []int
}

func (s *kfakeServer) start(context.Context) error {
	data := filepath.Join(s.dir, "kfake")
	if err := os.MkdirAll(data, 0o755); err != nil {
		return err
	}
	opts := append(KfakeOpts(), kfake.DataDir(data))
	if s.ports != nil {
		opts = append(opts, kfake.Ports(s.ports...))
	}
	c, err := kfake.NewCluster(opts...)
	if err != nil {
		return err
	}
	s.c = c
	if s.ports == nil {
		s.ports, err = portsOf(c.ListenAddrs())
	}
	return err
}

func (s *kfakeServer) kill() {
	if s.c != nil {
		s.c.Close()
		s.c = nil
	}
}

func (s *kfakeServer) stop() { s.kill() }

func (s *kfakeServer) info() Part {
	addrs := make([]string, len(s.ports))
	for i, p := range s.ports {
		addrs[i] = addr(p)
	}
	return Part{URL: strings.Join(addrs, ","), Rung: "kfake, 3 brokers in a process apart", PID: os.Getpid()}
}

// portsOf returns the ports of host:port addresses.
func portsOf(addrs []string) ([]int, error) {
	var ports []int
	for _, a := range addrs {
		_, port, err := net.SplitHostPort(a)
		if err != nil {
			return nil, err
		}
		n, err := strconv.Atoi(port)
		if err != nil {
			return nil, err
		}
		ports = append(ports, n)
	}
	return ports, nil
}
