package main

import (
	"io"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clearEnv lets the parts be started, whatever this test itself was started with.
func clearEnv(t *testing.T) {
	for _, name := range []string{"KAFKA_BROKERS", "REDIS_URL", "DATABASE_URL", "ONCEWARD_KAFKA"} {
		t.Setenv(name, "")
	}
}

func TestRun_ExitCodeOfCommand(t *testing.T) {
	tests := []struct {
		name string
		cmd  []string
		want int
	}{
		{"success", []string{"true"}, 0},
		{"failure", []string{"sh", "-c", "exit 3"}, 3},
		{"signal", []string{"sh", "-c", "kill -9 $$"}, 128 + 9},
		{"no such command", []string{"/nonexistent"}, 127},
		{"variables of the parts asked for", []string{"sh", "-c", `test -n "$KAFKA_BROKERS" && test -z "$REDIS_URL$DATABASE_URL"`}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			clearEnv(t)
			var stderr strings.Builder
			if got := run(append([]string{"-only", "kafka", "--"}, tt.cmd...), io.Discard, &stderr); got != tt.want {
				t.Errorf("exit code = %d, want %d\n%s", got, tt.want, stderr.String())
			}
			if !strings.Contains(stderr.String(), "kafka: kfake") {
				t.Errorf("stderr does not say where Kafka came from:\n%s", stderr.String())
			}
		})
	}
}

func TestRun_Usage(t *testing.T) {
	tests := []struct {
		name, arg, stderr string
		want              int
	}{
		{"help", "--help", "usage: up", 0},
		{"unknown flag", "-nonsense", "-nonsense", 2},
		{"unknown part", "-only=redis,mysql", `"mysql"`, 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var stderr strings.Builder
			if got := run([]string{tt.arg}, io.Discard, &stderr); got != tt.want || !strings.Contains(stderr.String(), tt.stderr) {
				t.Errorf("exit code = %d, want %d, and %q in:\n%s", got, tt.want, tt.stderr, stderr.String())
			}
		})
	}
}

func TestRun_StartFails(t *testing.T) {
	clearEnv(t)
	t.Setenv("REDIS_URL", "nonsense")
	var stderr strings.Builder
	if got := run([]string{"-only", "redis", "--", "true"}, io.Discard, &stderr); got != 1 || !strings.Contains(stderr.String(), "REDIS_URL") {
		t.Errorf("exit code = %d, want 1, and REDIS_URL in:\n%s", got, stderr.String())
	}
}
