package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestRun(t *testing.T) {
	for _, name := range []string{"KAFKA_BROKERS", "REDIS_URL", "DATABASE_URL", "PAYMENTS_URL"} {
		t.Setenv(name, "")
	}
	const usage = "usage: orders COMMAND"
	tests := []struct {
		args   string
		code   int
		stdout string // in it
		stderr string
	}{
		{"", 2, "", usage},
		{"help", 0, usage, ""},
		{"--help", 0, usage, ""},
		{"dmeo", 2, "", `command is "dmeo", must be demo, migrate or service`},
		{"demo --help", 0, "usage: orders demo", ""},
		{"demo -guard sword", 2, "", `-guard is "sword", must be one of none, lock, inbox, both`},
		{"demo -orders 5", 2, "", "-orders is 5, must be at least 100"},
		{"migrate -help", 0, "usage: orders migrate", ""},
		{"migrate", 1, "", "DATABASE_URL is not set"},
		{"migrate now", 1, "", `argument "now", must be flags only`},
		{"service -help", 0, "-retry-topic", ""},
		{"service", 1, "", "KAFKA_BROKERS is not set, must be the address of the server\nREDIS_URL is not set"},
		{"service -nmae A", 1, "", "not defined: -nmae"},
	}
	for _, tt := range tests {
		t.Run(tt.args, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if got := run(strings.Fields(tt.args), &stdout, &stderr); got != tt.code {
				t.Errorf("exit code = %d, want %d", got, tt.code)
			}
			for _, s := range []struct {
				name, got, want string
			}{{"standard output", stdout.String(), tt.stdout}, {"standard error", stderr.String(), tt.stderr}} {
				if !strings.Contains(s.got, s.want) || s.want == "" && s.got != "" {
					t.Errorf("%s = %q, want %q in it", s.name, s.got, s.want)
				}
			}
		})
	}
}

func TestRun_ServerAddressIsNotOne(t *testing.T) {
	t.Setenv("DATABASE_URL", "postgres://127.0.0.1:1/none?sslmode=disable")
	t.Setenv("KAFKA_BROKERS", "127.0.0.1:1")
	t.Setenv("REDIS_URL", "somewhere")
	t.Setenv("PAYMENTS_URL", "http://127.0.0.1:1")
	var stdout, stderr bytes.Buffer
	if got := run([]string{"service"}, &stdout, &stderr); got != 1 {
		t.Errorf("exit code = %d, want 1", got)
	}
	if want := `Redis is "somewhere", must be a URL like redis://`; !strings.Contains(stderr.String(), want) {
		t.Errorf("standard error = %q, want %q in it", &stderr, want)
	}
}
