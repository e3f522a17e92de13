package reentrant_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/devstack/devtest"
	"github.com/onceward/onceward/reentrant"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// A client whose server was killed looks for it in a goroutine that notices Close up
	// to a second later.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

// newLocker returns a locker with a prefix of its own on the shared server.
func newLocker(t *testing.T, cfg reentrant.Config) (*reentrant.Locker, *redis.Client) {
	t.Helper()
	rdb := devtest.Redis(t)
	return lockerOn(t, rdb, cfg), rdb
}

func lockerOn(t *testing.T, rdb redis.UniversalClient, cfg reentrant.Config) *reentrant.Locker {
	t.Helper()
	if cfg.Prefix == "" {
		cfg.Prefix = prefixOf(t)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	l, err := reentrant.New(rdb, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		l.Close()
		// Another run of the test begins with nothing.
		ctx := context.WithoutCancel(t.Context())
		for _, key := range rdb.Keys(ctx, cfg.Prefix+":*").Val() {
			rdb.Del(ctx, key)
		}
	})
	return l
}

// prefixOf is a key prefix that no other test, and no earlier run, has.
func prefixOf(t *testing.T) string {
	return strings.NewReplacer("/", "-", "{", "", "}", "").Replace(t.Name()) + "-" + started
}

var started = time.Now().Format("150405.000000")

// lockKeys returns the keys of the lock hashes under the prefix.
func lockKeys(t *testing.T, rdb redis.UniversalClient, prefix string) []string {
	t.Helper()
	keys, err := rdb.Keys(t.Context(), prefix+":*:lock:*").Result()
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// soleLock returns the hash of the only lock under the prefix.
func soleLock(t *testing.T, rdb redis.UniversalClient, prefix string) (key string, hash map[string]string) {
	t.Helper()
	keys := lockKeys(t, rdb, prefix)
	if len(keys) != 1 {
		t.Fatalf("locks in Redis: %v, want one", keys)
	}
	hash, err := rdb.HGetAll(t.Context(), keys[0]).Result()
	if err != nil {
		t.Fatal(err)
	}
	return keys[0], hash
}

// depthOf returns the depth in a lock hash, which has one owner.
func depthOf(t *testing.T, hash map[string]string) string {
	t.Helper()
	if len(hash) != 2 || hash["@fence"] == "" {
		t.Fatalf("lock hash is %v, want one owner and @fence", hash)
	}
	for field, v := range hash {
		if field != "@fence" {
			return v
		}
	}
	return ""
}

func acquire(t *testing.T, l *reentrant.Locker, ctx context.Context, name string, opts ...reentrant.AcquireOption) *reentrant.Lease {
	t.Helper()
	lease, err := l.Acquire(ctx, name, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func release(t *testing.T, lease *reentrant.Lease) {
	t.Helper()
	if err := lease.Release(t.Context()); err != nil {
		t.Fatalf("Release: %v", err)
	}
}

// logs hands on what is logged, line by line.
type logs chan string

func (l logs) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}
