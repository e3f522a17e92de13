package main

import (
	"bytes"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/bench/internal/compare"
	"github.com/onceward/onceward/internal/devstack"
)

func TestMain(m *testing.M) {
	if runAsChild() {
		return
	}
	os.Exit(m.Run())
}

// smoke is just enough for each part to do all that it does.
var smoke = size{
	rounds: 1, window: 20 * time.Millisecond, cycles: 20,
	trials: 1, contend: 50 * time.Millisecond,
	leases: 500, leaseTTL: 600 * time.Millisecond, sharded: 200, shardTTL: time.Second,
}

var targetLine = regexp.MustCompile(`^target lock/[a-z]+/\S+ -?[0-9.]+ (>=|<=) [0-9.]+ (ok|short)$`)

// Every part runs through and prints its targets. How fast anything is depends on
// the machine, so no number is looked at.
func TestParts(t *testing.T) {
	targets := map[string]int{"calls": 4, "commands": 2, "batch": 6, "handover": 2, "waiters": 2, "leases": 5, "shards": 3}
	if len(targets) != len(parts) {
		t.Errorf("%d parts, want %d", len(parts), len(targets))
	}
	for _, p := range parts {
		t.Run(p.Name, func(t *testing.T) {
			var out bytes.Buffer
			err := measure(t.Context(), smoke, compare.NewReport(&out, false, ""), t.Output(), func(name string) bool { return name == p.Name })
			if errors.Is(err, devstack.ErrMissing) && os.Getenv("ONCEWARD_REQUIRE") != "1" {
				t.Skip(err)
			}
			if err != nil {
				t.Fatalf("%v\n%s", err, &out)
			}
			lines := 0
			for line := range strings.Lines(out.String()) {
				if !strings.HasPrefix(line, "target") {
					continue
				}
				lines++
				if !targetLine.MatchString(strings.TrimSpace(line)) {
					t.Errorf("line %q does not look like a target", line)
				}
			}
			if lines != targets[p.Name] {
				t.Errorf("%d targets, want %d, in\n%s", lines, targets[p.Name], &out)
			}
		})
	}
}

func TestFlags(t *testing.T) {
	for _, args := range [][]string{{"-rounds", "-1"}, {"-run", "("}, {"calls"}, {"-nothing"}, {"-cpuprofile", t.TempDir()}} {
		var out bytes.Buffer
		if err := run(t.Context(), args, &out, &out); err == nil {
			t.Errorf("flags %q were accepted", args)
		}
	}
}

// What the part waiters says of the turns of all callers.
func TestJudge(t *testing.T) {
	at := func(ms int64) int64 { return ms * 1e6 }
	turns := []turn{
		{Asked: at(0), Got: at(1), Left: at(2), Released: at(3)},
		{Asked: at(0), Got: at(4), Left: at(5), Released: at(6)},
		{Asked: at(0), Got: at(4), Left: at(7), Released: at(8)}, // together with the one before
		{Asked: at(3), Got: at(11), Left: at(12), Released: at(13)},
		{Asked: at(3), Released: at(103)}, // never got it
	}
	s := judge(turns, time.Unix(0, at(10)), 10*time.Millisecond)
	want := compare.Sample{turnsPerSecond: 300, p50: 8, p99: 100, stuck: 1, overlaps: 1}
	for metric, v := range want {
		if s[metric] != v {
			t.Errorf("%s = %v, want %v", metric, s[metric], v)
		}
	}
}
