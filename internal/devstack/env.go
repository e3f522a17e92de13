package devstack

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"strings"
	"time"

	_ "github.com/lib/pq" // driver "postgres"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// reachWithin bounds the wait for an address from the environment. It is there or not:
// nothing is being started.
const reachWithin = 10 * time.Second

// An envServer is a part whose address is in the environment. It is not ours to stop.
type envServer struct {
	name, url string
	ask       func(ctx context.Context, url string) error
}

// fromEnv returns the part that the environment names, or nil.
func fromEnv(part string) server {
	s := map[string]*envServer{
		Kafka:    {name: EnvKafka, ask: askKafka},
		Redis:    {name: EnvRedis, ask: askRedis},
		Postgres: {name: EnvPostgres, ask: askPostgres},
	}[part]
	if s == nil {
		return nil
	}
	if s.url = os.Getenv(s.name); s.url == "" {
		return nil
	}
	return s
}

func (s *envServer) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, reachWithin, fmt.Errorf("no answer within %v", reachWithin))
	defer cancel()
	if err := s.ask(ctx, s.url); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
		return fmt.Errorf("%s is set, but: %w (unset it to have a server started)", s.name, err)
	}
	return nil
}

func (s *envServer) kill()      {}
func (s *envServer) stop()      {}
func (s *envServer) info() Part { return Part{URL: s.url, Rung: s.name + " of the environment"} }

func askRedis(ctx context.Context, url string) error {
	opts, err := redis.ParseURL(url)
	if err != nil {
		return err
	}
	opts.MaxRetries, opts.DialerRetries = -1, 1
	opts.ContextTimeoutEnabled = true // else only the read timeout ends a wait
	c := redis.NewClient(opts)
	defer c.Close()
	return c.Ping(ctx).Err()
}

func askPostgres(ctx context.Context, url string) error {
	db, err := sql.Open("postgres", url)
	if err != nil {
		return err
	}
	defer db.Close()
	return db.PingContext(ctx)
}

func askKafka(ctx context.Context, brokers string) error {
	_, err := kafkaMetadata(ctx, strings.Split(brokers, ","))
	return err
}

func kafkaMetadata(ctx context.Context, brokers []string) (kadm.Metadata, error) {
	c, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.RetryTimeout(2*time.Second),
		kgo.RetryBackoffFn(func(int) time.Duration { return 50 * time.Millisecond }))
	if err != nil {
		return kadm.Metadata{}, err
	}
	defer c.Close()
	md, err := kadm.NewClient(c).BrokerMetadata(ctx)
	if err == nil && len(md.Brokers) == 0 {
		err = fmt.Errorf("the cluster at %v has no brokers", brokers)
	}
	return md, err
}
