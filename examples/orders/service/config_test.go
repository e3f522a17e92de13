package service

import (
	"strings"
	"testing"
	"time"

	"go.uber.org/fx"
)

// good is a configuration that nothing is wrong with.
func good() Config {
	return Config{
		Postgres: "postgres://localhost:5432/orders",
		Redis:    "redis://localhost:6379",
		Brokers:  []string{"localhost:9092"},
		Payments: "http://localhost:8080",
	}
}

func TestConfig_Validate(t *testing.T) {
	if err := good().withDefaults().validate(); err != nil {
		t.Fatalf("error = %v, want none", err)
	}
	for _, tt := range []struct {
		want  string // in the error
		spoil func(c *Config)
	}{
		{`Postgres is "", must be a URL like postgres://`, func(c *Config) { c.Postgres = "" }},
		{`Redis is "localhost:6379", must be a URL like redis://`, func(c *Config) { c.Redis = "localhost:6379" }},
		{`Payments is "http://", must be a URL like http://`, func(c *Config) { c.Payments = "http://" }},
		{"Brokers is empty, must be host:port", func(c *Config) { c.Brokers = nil }},
		{"Brokers is empty, must be host:port", func(c *Config) { c.Brokers = []string{""} }},
		{`RetryTopic is "x" like Topic, must be another topic`, func(c *Config) { c.Topic, c.RetryTopic = "x", "x" }},
		{"ScanEvery is -1s, must be above 0", func(c *Config) { c.ScanEvery = -time.Second }},
		{"ScanBatch is -1, must be at least 1", func(c *Config) { c.ScanBatch = -1 }},
		{`Guard: guard is "sword", must be one of none, lock, inbox, both`, func(c *Config) { c.Guard = "sword" }},
	} {
		c := good()
		tt.spoil(&c)
		if err := c.withDefaults().validate(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("error = %v, want %q in it", err, tt.want)
		}
	}
}

func TestConfig_HidesPassword(t *testing.T) {
	c := good()
	c.Postgres = "postgres://user:secret@/orders"
	if err := c.withDefaults().validate(); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("error = %v, want one without the password", err)
	}
}

func TestOptions_Graph(t *testing.T) {
	if err := fx.ValidateApp(options(good().withDefaults(), clients{}, Hooks{}, quiet)); err != nil {
		t.Error(err)
	}
}
