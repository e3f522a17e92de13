package arch

import (
	"os/exec"
	"strings"
	"testing"
)

const module = "github.com/onceward/onceward"

// TestImports holds the direction of the tree:
//
//	examples -> *fx -> consumer -> middleware -> reentrant -> watchdog
//	                                    \-----> inbox ----/
//
// One import of Fx adds dig, multierr and zap to every program that uses the
// package, and a lock that drags in Kafka is no use to an HTTP server.
func TestImports(t *testing.T) {
	const (
		fx    = "go.uber.org/fx"
		redis = "github.com/redis"
		kafka = "github.com/twmb"
		sqlx  = "github.com/jmoiron/sqlx"
		pq    = "github.com/lib/pq"
		own   = module + "/"
		tests = module + "/internal"
	)
	rules := []struct {
		pkg  string
		deny []string // import paths, with all below them
	}{
		{"watchdog", []string{fx, redis, kafka, sqlx, pq, tests, own + "reentrant", own + "inbox", own + "middleware", own + "consumer"}},
		{"reentrant", []string{fx, kafka, sqlx, pq, "database/sql", tests, own + "inbox", own + "middleware", own + "consumer"}},
		{"inbox", []string{fx, redis, kafka, pq, tests, own + "reentrant", own + "middleware", own + "consumer"}},
		{"middleware", []string{fx, pq, tests, own + "consumer"}},
		{"consumer", []string{fx, pq, tests}},
		{"reentrant/reentrantfx", []string{kafka, sqlx, pq, tests, own + "inbox", own + "middleware", own + "consumer"}},
		{"inbox/inboxtest", []string{fx, redis, kafka, pq, tests, own + "reentrant", own + "middleware", own + "consumer"}},
		{"inbox/inboxfx", []string{redis, kafka, pq, tests, own + "reentrant", own + "middleware", own + "consumer"}},
		{"consumer/consumerfx", []string{pq, tests}},
	}
	for _, r := range rules {
		for _, dep := range deps(t, own+r.pkg) {
			for _, deny := range r.deny {
				if below(dep, deny) {
					t.Errorf("%s imports %s", r.pkg, dep)
				}
			}
		}
	}
}

// Nothing but the standard library below the watchdog.
func TestWatchdogIsStandardLibraryOnly(t *testing.T) {
	for _, dep := range deps(t, module+"/watchdog") {
		if first, _, _ := strings.Cut(dep, "/"); strings.Contains(first, ".") && dep != module+"/watchdog" {
			t.Errorf("watchdog imports %s", dep)
		}
	}
}

func TestBelow(t *testing.T) {
	for _, tt := range []struct {
		dep, deny string
		want      bool
	}{{"a/b", "a", true}, {"a", "a", true}, {"ab", "a", false}, {"a", "a/b", false}} {
		if got := below(tt.dep, tt.deny); got != tt.want {
			t.Errorf("below(%q, %q) = %v, want %v", tt.dep, tt.deny, got, tt.want)
		}
	}
}

func below(dep, deny string) bool { return dep == deny || strings.HasPrefix(dep, deny+"/") }

// deps lists what a package imports, directly or not, itself included.
func deps(t *testing.T, pkg string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", pkg).CombinedOutput()
	if err != nil {
		t.Fatalf("go list %s: %v\n%s", pkg, err, out)
	}
	return strings.Fields(string(out))
}
