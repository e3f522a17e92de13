package service

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"
)

// Config is what an instance of the service needs to know.
type Config struct {
	// Name of the instance, as the servers see it: Kafka's client ID, Postgres's
	// application_name. Defaults to "orders".
	Name string

	// Postgres is the URL of the database that has the schema (see [Migrate]).
	// Required.
	Postgres string

	// Redis is the URL of the server with the locks. Required.
	Redis string

	// Brokers of Kafka, as host:port. Required.
	Brokers []string

	// Payments is the URL of the payment service. Required.
	Payments string

	// Topic gets the events of the scan job. Both it and RetryTopic are consumed.
	// They default to "orders.timeout" and "orders.timeout.retry".
	Topic, RetryTopic string

	// Group is the consumer group, and the name of the inbox. Defaults to "orders".
	Group string

	// Prefix begins all keys in Redis. Defaults to "orders".
	Prefix string

	// Lease is how long a lock lasts when its holder dies. Defaults to 10s.
	Lease time.Duration

	// Session is how long Kafka waits for an instance that is silent. Defaults to 45s.
	Session time.Duration

	// LockWait is how long a transaction waits for another one's rows. Defaults to 2s.
	LockWait time.Duration

	// ScanEvery is the pause between two rounds of the scan job. Defaults to 1s.
	ScanEvery time.Duration

	// ScanBatch is how many orders one round announces at most. Defaults to 500.
	ScanBatch int

	// Guard defaults to [Both]. The others are for comparison.
	Guard Guard
}

func (c Config) withDefaults() Config {
	c.Name = cmp.Or(c.Name, "orders")
	c.Topic = cmp.Or(c.Topic, "orders.timeout")
	c.RetryTopic = cmp.Or(c.RetryTopic, "orders.timeout.retry")
	c.Group = cmp.Or(c.Group, "orders")
	c.Prefix = cmp.Or(c.Prefix, "orders")
	c.Lease = cmp.Or(c.Lease, 10*time.Second)
	c.Session = cmp.Or(c.Session, 45*time.Second)
	c.LockWait = cmp.Or(c.LockWait, 2*time.Second)
	c.ScanEvery = cmp.Or(c.ScanEvery, time.Second)
	c.ScanBatch = cmp.Or(c.ScanBatch, 500)
	c.Guard = cmp.Or(c.Guard, Both)
	return c
}

// validate leaves to the packages what they check themselves: lease, session, group.
func (c Config) validate() error {
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	for _, u := range []struct{ field, value, like string }{
		{"Postgres", c.Postgres, "postgres://user:password@host:5432/orders"},
		{"Redis", c.Redis, "redis://host:6379"},
		{"Payments", c.Payments, "http://host:8080"},
	} {
		if parsed, err := url.Parse(u.value); err != nil || parsed.Host == "" {
			bad("%s is %q, must be a URL like %s", u.field, hidden(parsed, u.value), u.like)
		}
	}
	if len(c.Brokers) == 0 || strings.TrimSpace(c.Brokers[0]) == "" {
		bad("Brokers is empty, must be host:port of at least one broker")
	}
	if c.Topic == c.RetryTopic {
		bad("RetryTopic is %q like Topic, must be another topic", c.RetryTopic)
	}
	if c.ScanEvery <= 0 {
		bad("ScanEvery is %v, must be above 0", c.ScanEvery)
	}
	if c.ScanBatch < 1 {
		bad("ScanBatch is %d, must be at least 1", c.ScanBatch)
	}
	if _, err := ParseGuard(string(c.Guard)); err != nil {
		errs = append(errs, fmt.Errorf("Guard: %w", err))
	}
	return errors.Join(errs...)
}

// hidden returns a URL for an error message: without the password.
func hidden(parsed *url.URL, value string) string {
	if parsed == nil {
		return "(not shown)"
	}
	if parsed.User != nil {
		return parsed.Redacted()
	}
	return value
}
