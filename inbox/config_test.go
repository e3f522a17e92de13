package inbox

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestNew_Validate(t *testing.T) {
	tests := []struct {
		name, want string
		change     func(c *Config)
	}{
		{"no consumer", `Consumer is "", must be a name`, func(c *Config) { c.Consumer = "" }},
		{"blank consumer", `Consumer is " ", must be a name`, func(c *Config) { c.Consumer = " " }},
		{"long consumer", "Consumer is 201 bytes long, must be at most 200", func(c *Config) { c.Consumer = strings.Repeat("x", 201) }},
		{"NUL in consumer", `Consumer is "a\x00", must be UTF-8 without NUL`, func(c *Config) { c.Consumer = "a\x00" }},
		{"blank tenant", `Tenant is "\t", must be empty or a name`, func(c *Config) { c.Tenant = "\t" }},
		{"long tenant", "Tenant is 201 bytes long", func(c *Config) { c.Tenant = strings.Repeat("x", 201) }},
		{"tenant not UTF-8", `Tenant is "\xff", must be UTF-8`, func(c *Config) { c.Tenant = "\xff" }},
		{"schema quoted", "Schema is \"a\\\"b\", must be", func(c *Config) { c.Schema = `a"b` }},
		{"schema upper case", "Schema is \"Inbox\", must be", func(c *Config) { c.Schema = "Inbox" }},
		{"schema of the server", "Schema is \"pg_inbox\", must be", func(c *Config) { c.Schema = "pg_inbox" }},
		{"table upper case", "Table is \"Box\", must be", func(c *Config) { c.Table = "Box" }},
		{"table of the server", "Table is \"pg_box\", must be", func(c *Config) { c.Table = "pg_box" }},
		{"table long", "must be 1 to 40", func(c *Config) { c.Table = strings.Repeat("x", 41) }},
		{"schema long", "must be empty or 1 to 63", func(c *Config) { c.Schema = strings.Repeat("x", 64) }},
		{"fences too short", "FenceRetention is 59m59s, must be at least 1h", func(c *Config) { c.FenceRetention = time.Hour - time.Second }},
		{"fences too short for claims", "FenceRetention is 1h0m0s, must be at least", func(c *Config) { c.FenceRetention, c.LockTimeout = time.Hour, time.Minute }},
		{"short hold", "MaxHold is 999ms, must be from 1s to 24h", func(c *Config) { c.MaxHold = 999 * time.Millisecond; c.LockTimeout = time.Millisecond }},
		{"long hold", "MaxHold is 24h0m1s, must be from 1s to 24h", func(c *Config) { c.MaxHold = 24*time.Hour + time.Second }},
		{"no lock timeout", "LockTimeout is 999µs, must be from 1ms to MaxHold (1m0s)", func(c *Config) { c.LockTimeout = 999 * time.Microsecond }},
		{"lock timeout over hold", "LockTimeout is 1m1s, must be from 1ms to MaxHold (1m0s)", func(c *Config) { c.LockTimeout = 61 * time.Second }},
		{"short commit", "CommitTimeout is 99ms, must be from 100ms to 1h", func(c *Config) { c.CommitTimeout = 99 * time.Millisecond }},
		{"long commit", "CommitTimeout is 1h0m1s, must be from 100ms to 1h", func(c *Config) { c.CommitTimeout = time.Hour + time.Second }},
		{"negative stride", "Stride is -1, must be from 1 to 64", func(c *Config) { c.Stride = -1 }},
		{"negative attempts", "MaxAttempts is -1, must be from 1 to 1000, or 0", func(c *Config) { c.MaxAttempts = -1 }},
		{"many attempts", "MaxAttempts is 1001, must be from 1 to 1000, or 0", func(c *Config) { c.MaxAttempts = 1001 }},
		{"parks without attempts", "ParkKey is set, so MaxAttempts must be from 1 to 1000", func(c *Config) { c.ParkKey = true }},
		{"negative starts", "MaxStarts is -1, must be from 1 to 1000", func(c *Config) { c.MaxStarts = -1 }},
		{"many starts", "MaxStarts is 1001, must be from 1 to 1000", func(c *Config) { c.MaxStarts = 1001 }},
		{"wide stride", "Stride is 65, must be from 1 to 64", func(c *Config) { c.Stride = 65 }},
	}
	db := openURL(t, "postgres://x@127.0.0.1:1/x") // New does no I/O
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := Config{Consumer: "billing"}
			tt.change(&cfg)
			_, err := New(db, cfg)
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error = %v, want %q alone", err, tt.want)
			}
		})
	}
	if _, err := New(db, Config{Consumer: "billing", Tenant: "acme", Schema: "onceward_1", MaxHold: time.Second}); err != nil {
		t.Errorf("a good configuration: %v", err)
	}
	_, err := New(nil, Config{Stride: 65})
	for _, want := range []string{"db is nil", "Consumer is", "Stride is"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error = %v, want %q in it", err, want)
		}
	}
}

func TestNew_LeavesTheCallersConfigAlone(t *testing.T) {
	cfg := Config{Consumer: "billing"}
	b := newBox(t, openURL(t, "postgres://x@127.0.0.1:1/x"), cfg)
	if !reflect.DeepEqual(cfg, Config{Consumer: "billing"}) {
		t.Errorf("config = %+v, was changed", cfg)
	}
	if b.cfg.MaxHold != DefaultMaxHold || b.cfg.LockTimeout != DefaultLockTimeout || b.cfg.CommitTimeout != DefaultCommitTimeout || b.cfg.Stride != DefaultStride || b.cfg.MaxStarts != DefaultMaxStarts || b.cfg.Logger == nil {
		t.Errorf("defaults = %+v", b.cfg)
	}
}

func TestNames_In(t *testing.T) {
	if got := (names{"", "inbox"}).in("FROM {inbox} JOIN {inbox_scope}"); got != "FROM inbox JOIN inbox_scope" {
		t.Errorf("in the search path = %s", got)
	}
	if got := (names{"s", "box"}).in("FROM {inbox} JOIN {inbox_scope}"); got != `FROM "s".box JOIN "s".box_scope` {
		t.Errorf("in a schema = %s", got)
	}
}
