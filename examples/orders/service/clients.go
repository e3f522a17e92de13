package service

import (
	"context"
	"errors"
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

// clients are the ways to the servers. They are opened before the application and closed
// behind it, so that an application that does not start leaves nothing open.
type clients struct {
	fx.Out

	DB       *sqlx.DB
	Redis    redis.UniversalClient
	Payments *Payments
	Producer *kgo.Client
}

// open opens all clients. It does no I/O.
func open(cfg Config) (c clients, err error) {
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	if c.DB, err = OpenDB(cfg.Postgres, cfg.Name); err != nil {
		return c, err
	}
	opts, err := redis.ParseURL(cfg.Redis)
	if err != nil {
		return c, fmt.Errorf("Redis: %w", err)
	}
	c.Redis = redis.NewClient(opts)
	c.Payments = NewPayments(cfg)
	// Of the scan job alone: the consumer makes its own.
	if c.Producer, err = kgo.NewClient(kgo.SeedBrokers(cfg.Brokers...), kgo.ClientID(cfg.Name)); err != nil {
		return c, fmt.Errorf("Kafka: %w", err)
	}
	return c, nil
}

func (c clients) close() error {
	var errs []error
	if c.Producer != nil {
		c.Producer.Close()
	}
	if c.Payments != nil {
		c.Payments.Close()
	}
	if c.Redis != nil {
		errs = append(errs, c.Redis.Close())
	}
	if c.DB != nil {
		errs = append(errs, c.DB.Close())
	}
	return errors.Join(errs...)
}

// A kafkaPublisher tells the topic of the scan job.
type kafkaPublisher struct {
	client *kgo.Client
	topic  string
}

func newPublisher(cfg Config, client *kgo.Client) Publisher {
	return &kafkaPublisher{client, cfg.Topic}
}

func (p *kafkaPublisher) Publish(ctx context.Context, events []Event) error {
	records := make([]*kgo.Record, len(events))
	for i, e := range events {
		records[i] = e.Record()
		records[i].Topic = p.topic
	}
	return p.client.ProduceSync(ctx, records...).FirstErr()
}
