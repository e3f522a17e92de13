package locktest

import (
	"crypto/rand"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/onceward/onceward/internal/devstack/devtest"
	"github.com/onceward/onceward/reentrant"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRedis(t *testing.T) {
	rdb := devtest.Redis(t)
	Run(t, func(t *testing.T) reentrant.Store { return redisStore(t, rdb, reentrant.Config{}) })
}

func TestRedis_SingleKeyScripts(t *testing.T) {
	rdb := devtest.Redis(t)
	Run(t, func(t *testing.T) reentrant.Store {
		return redisStore(t, rdb, reentrant.Config{SingleKeyScripts: true})
	})
}

func TestMiniredis(t *testing.T) {
	m := miniredis.RunT(t)
	m.ClockTTL(true) // else keys never expire
	// It is slow with scripts, and more so with the race detector.
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr(), ReadTimeout: 30 * time.Second})
	t.Cleanup(func() { rdb.Close() })
	Run(t, func(t *testing.T) reentrant.Store { return redisStore(t, rdb, reentrant.Config{}) })
}

// redisStore returns an empty store: its prefix is used by nobody else.
func redisStore(t *testing.T, rdb redis.UniversalClient, cfg reentrant.Config) reentrant.Store {
	t.Helper()
	cfg.Prefix = rand.Text()
	s, err := reentrant.NewRedisStore(rdb, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
