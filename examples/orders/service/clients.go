package service

import (
	"context"
	"fmt"
	"net/url"

	"github.com/jmoiron/sqlx"
	_ "github.com/lib/pq" // driver "postgres"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/fx"
)

// maxConns is how many connections to Postgres an instance has: one for each batch at
// work, one for the look before each, and a few for the scan job.
const maxConns = 12

// OpenDB opens a pool whose connections carry the instance's name, unless the address
// has an application_name. It does no I/O.
func OpenDB(address, name string) (*sqlx.DB, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("Postgres: %w", err)
	}
	q := u.Query()
	if !q.Has("application_name") {
		q.Set("application_name", name)
	}
	u.RawQuery = q.Encode()
	db, err := sqlx.Open("postgres", u.String())
	if err != nil {
		return nil, fmt.Errorf("Postgres: %w", err)
	}
	db.SetMaxOpenConns(maxConns)
	db.SetMaxIdleConns(maxConns)
	return db, nil
}

func newDB(lc fx.Lifecycle, cfg Config) (*sqlx.DB, error) {
	db, err := OpenDB(cfg.Postgres, cfg.Name)
	if err != nil {
		return nil, err
	}
	lc.Append(fx.Hook{
		OnStart: func(ctx context.Context) error {
			if err := db.PingContext(ctx); err != nil {
				db.Close()
				return fmt.Errorf("Postgres does not answer, check its address: %w", err)
			}
			if err := check(ctx, db); err != nil {
				db.Close()
				return err
			}
			return nil
		},
		OnStop: func(context.Context) error { return db.Close() },
	})
	return db, nil
}

func newRedis(lc fx.Lifecycle, cfg Config) (redis.UniversalClient, error) {
	opts, err := redis.ParseURL(cfg.Redis)
	if err != nil {
		return nil, fmt.Errorf("Redis: %w", err)
	}
	rdb := redis.NewClient(opts)
	lc.Append(fx.StopHook(rdb.Close))
	return rdb, nil
}

// A kafkaPublisher tells the topic of the scan job.
type kafkaPublisher struct {
	client *kgo.Client
	topic  string
}

func newPublisher(lc fx.Lifecycle, cfg Config) (Publisher, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(cfg.Brokers...), kgo.ClientID(cfg.Name))
	if err != nil {
		return nil, fmt.Errorf("Kafka: %w", err)
	}
	lc.Append(fx.StopHook(client.Close))
	return &kafkaPublisher{client, cfg.Topic}, nil
}

func (p *kafkaPublisher) Publish(ctx context.Context, events []Event) error {
	records := make([]*kgo.Record, len(events))
	for i, e := range events {
		records[i] = e.Record()
		records[i].Topic = p.topic
	}
	return p.client.ProduceSync(ctx, records...).FirstErr()
}

func newPayments(lc fx.Lifecycle, cfg Config) *Payments {
	p := NewPayments(cfg)
	lc.Append(fx.StopHook(p.Close))
	return p
}
