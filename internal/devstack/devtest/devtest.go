package devtest

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/onceward/onceward/internal/devstack"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kfake"
)

// startWithin bounds a start. Binaries may have to be fetched first.
const startWithin = 4 * time.Minute

// shared is a server that the tests of this binary share. Its stack is never closed: it
// ends with this process.
type shared struct {
	cfg   devstack.Config
	once  sync.Once
	stack *devstack.Stack
	err   error
}

var (
	sharedRedis    = &shared{cfg: devstack.Config{Redis: true}}
	sharedPostgres = &shared{cfg: devstack.Config{Postgres: true}}
	sharedKafka    = &shared{cfg: devstack.Config{Kafka: true}}
)

func (s *shared) get(t testing.TB) *devstack.Stack {
	t.Helper()
	s.once.Do(func() {
		s.stack, s.err = start(t, context.Background(), s.cfg) // outlives t
	})
	check(t, s.err)
	return s.stack
}

func start(t testing.TB, ctx context.Context, cfg devstack.Config) (*devstack.Stack, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startWithin, errors.New("not ready within "+startWithin.String()))
	defer cancel()
	cfg.Progress = func(line string) { t.Log(line) }
	return devstack.Start(ctx, cfg)
}

// check ends the test if err is not nil.
func check(t testing.TB, err error) {
	t.Helper()
	switch {
	case err == nil:
	case errors.Is(err, devstack.ErrMissing) && os.Getenv("ONCEWARD_REQUIRE") != "1":
		t.Skip(err)
	default:
		t.Fatal(err)
	}
}

// Start starts a stack for this test alone and closes it when the test ends. Addresses in
// the environment are ignored.
func Start(t testing.TB, cfg devstack.Config) *devstack.Stack {
	t.Helper()
	cfg.Private = true
	stack, err := start(t, t.Context(), cfg)
	check(t, err)
	t.Cleanup(func() {
		if err := stack.Close(); err != nil {
			t.Error(err)
		}
	})
	return stack
}

// RedisURL returns the address of the shared Redis, with go-redis's defaults.
func RedisURL(t testing.TB) string {
	t.Helper()
	return sharedRedis.get(t).Parts[devstack.Redis].URL
}

// Redis returns a client of the shared Redis, closed when the test ends. Other tests have
// keys there too.
func Redis(t testing.TB) *redis.Client {
	t.Helper()
	return redisClient(t, RedisURL(t))
}

func redisClient(t testing.TB, url string) *redis.Client {
	t.Helper()
	opts, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	c := redis.NewClient(opts)
	t.Cleanup(func() { c.Close() }) // the test may have closed it
	return c
}

// Postgres returns a pool on an empty schema of the shared server. When the test ends,
// the pool is closed and the schema dropped.
func Postgres(t testing.TB) *sqlx.DB {
	t.Helper()
	db, err := sqlx.ConnectContext(t.Context(), "postgres", PostgresURL(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() }) // the test may have closed it
	return db
}

// Kafka returns the brokers of a cluster: those of KAFKA_BROKERS, or with
// ONCEWARD_KAFKA=apache a real broker shared by the tests of this binary, else kfake for
// this test alone. Create topics by admin call, with names that no other test uses.
func Kafka(t testing.TB) []string {
	t.Helper()
	if os.Getenv(devstack.EnvKafka) != "" || os.Getenv("ONCEWARD_KAFKA") == "apache" {
		return sharedKafka.get(t).Brokers()
	}
	c, err := kfake.NewCluster(devstack.KfakeOpts()...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c.ListenAddrs()
}
