package consumer

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/middleware"
	"github.com/twmb/franz-go/pkg/kgo"
)

func dummyCallback(context.Context, *kgo.Client, map[string][]int32) {}

func valid() (Config, []Route) {
	return Config{Group: "g", Client: []kgo.Opt{kgo.SeedBrokers("localhost:9092")}}, []Route{routeTo(nothing)}
}

func TestNew_DefaultsAreValid(t *testing.T) {
	cfg, routes := valid()
	c, err := New(cfg, routes...)
	if err != nil {
		t.Fatal(err)
	}
	if got := c.cfg.DrainTimeout + cancelGrace + commitTimeout; got >= 15*time.Second {
		t.Errorf("default drain, grace and commit take up to %v, Fx gives 15s", got)
	}
}

func TestNew_RefusesEachMistake(t *testing.T) {
	for want, spoil := range map[string]func(*Config, *[]Route){
		`Group is ""`:                                func(c *Config, _ *[]Route) { c.Group = "" },
		`Group is " "`:                               func(c *Config, _ *[]Route) { c.Group = " " },
		"Client is empty":                            func(c *Config, _ *[]Route) { c.Client = nil },
		"Client has an option that is wrong":         func(c *Config, _ *[]Route) { c.Client = append(c.Client, kgo.FetchMaxWait(-1)) },
		"assigned/revoked/lost functions":            func(c *Config, _ *[]Route) { c.Client = append(c.Client, kgo.OnPartitionsLost(dummyCallback)) },
		"autocommit options":                         func(c *Config, _ *[]Route) { c.Client = append(c.Client, kgo.AutoCommitMarks()) },
		"Workers is -1, must be at least 1":          func(c *Config, _ *[]Route) { c.Workers = -1 },
		"BatchMax is -1, must be at least 1":         func(c *Config, _ *[]Route) { c.BatchMax = -1 },
		"Window is 1, must be at least 2":            func(c *Config, _ *[]Route) { c.Window = 1 },
		"WindowBytes is -1, must be at least 1":      func(c *Config, _ *[]Route) { c.WindowBytes = -1 },
		"BatchTime is -1ns, must be above 0":         func(c *Config, _ *[]Route) { c.BatchTime = -1 },
		"CommitEvery is -1ns, must be above 0":       func(c *Config, _ *[]Route) { c.CommitEvery = -1 },
		"DrainTimeout is -1ns, must be above 0":      func(c *Config, _ *[]Route) { c.DrainTimeout = -1 },
		"RebalanceTimeout is -1ns, must be above 0":  func(c *Config, _ *[]Route) { c.RebalanceTimeout = -1 },
		"SessionTimeout is -1ns, must be above 0":    func(c *Config, _ *[]Route) { c.SessionTimeout = -1 },
		"HeartbeatInterval is -1ns, must be above 0": func(c *Config, _ *[]Route) { c.HeartbeatInterval = -1 },
		"RetryMin is -1ns, must be above 0":          func(c *Config, _ *[]Route) { c.RetryMin = -1 },
		"ConnectTimeout is -1ns, must be above 0":    func(c *Config, _ *[]Route) { c.ConnectTimeout = -1 },
		"RetryMax is 1ms, must be at least RetryMin": func(c *Config, _ *[]Route) { c.RetryMax = time.Millisecond },
		"HeartbeatInterval is 20s, must be at most":  func(c *Config, _ *[]Route) { c.HeartbeatInterval = 20 * time.Second },
		"DrainTimeout is 51s, must be at most RebalanceTimeout - HeartbeatInterval - 7s (50s)": func(c *Config, _ *[]Route) {
			c.DrainTimeout = 51 * time.Second
		},
		"no routes":                    func(_ *Config, r *[]Route) { *r = nil },
		"routes[0].Topics is empty":    func(_ *Config, r *[]Route) { (*r)[0].Topics = nil },
		`routes[0].Topics holds " "`:   func(_ *Config, r *[]Route) { (*r)[0].Topics = []string{"t", " "} },
		"routes[0].Identify is nil":    func(_ *Config, r *[]Route) { (*r)[0].Identify = nil },
		"routes[0].Handler is nil":     func(_ *Config, r *[]Route) { (*r)[0].Handler = nil },
		"routes[0].Handler is nil, ":   func(_ *Config, r *[]Route) { (*r)[0].Handler = middleware.RecordFunc(nil) },
		`topic "t" is in routes[0] an`: func(_ *Config, r *[]Route) { *r = append(*r, (*r)[0]) },
		`topic "t" is in routes[0]`:    func(_ *Config, r *[]Route) { (*r)[0].Topics = []string{"t", "t"} },
	} {
		cfg, routes := valid()
		spoil(&cfg, &routes)
		_, err := New(cfg, routes...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New = %v, want %q", err, want)
		}
		if err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("New = %v, but there is one mistake", err)
		}
	}
}

func TestNew_ReportsAllMistakes(t *testing.T) {
	_, err := New(Config{Workers: -1}, Route{})
	for _, want := range []string{"Group", "Client", "Workers", "Topics", "Identify", "Handler"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New = %v, want it to name %s", err, want)
		}
	}
}

func TestNew_KeepsNothingOfTheCallers(t *testing.T) {
	cfg, routes := valid()
	c, err := New(cfg, routes...)
	if err != nil {
		t.Fatal(err)
	}
	routes[0].Topics[0] = "another"
	routes[0].Handler = nil
	cfg.Client[0] = nil
	if c.routes[0].Topics[0] != "t" || c.routes[0].Handler == nil || c.cfg.Client[0] == nil {
		t.Error("a change after New reaches the consumer")
	}
	if cfg.Workers != 0 {
		t.Error("New changed the caller's Config")
	}
}
