package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/onceward/onceward/examples/orders/service"
	"github.com/onceward/onceward/internal/devstack"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// partitions of each topic.
const partitions = 6

// lockWait is longer than a pause, to have rivals wait in Postgres rather than come back.
const lockWait = 15 * time.Second

// A timing is how long things last. The lease is short, so that the scenes are; the session
// outlasts a pause, so that a paused instance keeps its partitions.
type timing struct {
	lease     time.Duration
	session   time.Duration // of Kafka
	scanEvery time.Duration
}

var normal = timing{lease: 2 * time.Second, session: 10 * time.Second, scanEvery: 200 * time.Millisecond}

// A world is one run with one guard: its own schema, topics, group and Redis keys, the
// three instances, and what was learned about them.
type world struct {
	opts   Options
	guard  service.Guard
	id     string // part of all names
	stack  *devstack.Stack
	screen *screen
	log    io.Writer // of the children

	plan     plan
	cfg      service.Config // of an instance, but for its name
	db       *sqlx.DB
	rdb      *redis.Client
	producer *kgo.Client
	admin    *kadm.Client
	payments *payments
	journal  *journal

	instances map[string]*instance
	cancel    context.CancelCauseFunc // of the context of the run: a child has died

	undo []func() error // of what open made, last first
}

// open makes all that the run needs before its children start. close undoes it, also if
// open fails.
func (w *world) open(ctx context.Context) error {
	w.journal = newJournal()
	w.instances = map[string]*instance{}
	schema := "orders_demo_" + strings.ReplaceAll(w.id, "-", "_")
	address, err := with(w.stack.Parts[devstack.Postgres].URL, "search_path", schema)
	if err != nil {
		return err
	}
	topic := "orders.timeout"
	if w.shared(devstack.Kafka) || w.opts.Compare {
		topic = "demo-" + w.id + "." + topic
	}
	w.cfg = service.Config{
		Postgres:   address,
		Redis:      w.stack.Parts[devstack.Redis].URL,
		Brokers:    w.stack.Brokers(),
		Topic:      topic,
		RetryTopic: topic + ".retry",
		Group:      "orders-demo-" + w.id,
		Prefix:     "orders-demo-" + w.id,
		Lease:      w.opts.timing.lease,
		Session:    w.opts.timing.session,
		LockWait:   lockWait,
		ScanEvery:  w.opts.timing.scanEvery,
		Guard:      w.guard,
	}
	for _, step := range []struct {
		name string
		make func(context.Context) error
	}{
		{"Postgres", func(ctx context.Context) error { return w.openPostgres(ctx, schema) }},
		{"Redis", w.openRedis},
		{"Kafka", w.openKafka},
	} {
		if err := step.make(ctx); err != nil {
			return fmt.Errorf("set up %s: %w", step.name, err)
		}
	}
	w.payments, err = startPayments(w.lookAtScanLock)
	if err != nil {
		return err
	}
	w.defers(func() error { w.payments.close(); return nil })
	w.cfg.Payments = w.payments.url
	return nil
}

// shared reports whether a server is somebody else's, so that we clean up behind us.
func (w *world) shared(part string) bool { return w.stack.Parts[part].PID == 0 }

func (w *world) defers(f func() error) { w.undo = append(w.undo, f) }

// close ends the children and removes what open made, in reverse.
func (w *world) close() error {
	var errs []error
	for _, in := range w.instances {
		in.kill() // those that stopped before are gone
	}
	for i := len(w.undo) - 1; i >= 0; i-- {
		errs = append(errs, w.undo[i]())
	}
	w.undo = nil
	return errors.Join(errs...)
}

// cleanWithin bounds each step of the clean-up, which has to work after Ctrl-C too.
const cleanWithin = 10 * time.Second

func cleanup() (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(context.Background(), cleanWithin, fmt.Errorf("no answer within %v", cleanWithin))
}

// with adds a parameter to the address of a Postgres.
func with(address, name, value string) (string, error) {
	u, err := url.Parse(address)
	if err != nil {
		return "", fmt.Errorf("%s must be a URL: %w", devstack.EnvPostgres, err)
	}
	q := u.Query()
	q.Set(name, value)
	u.RawQuery = q.Encode()
	return u.String(), nil
}

func (w *world) openPostgres(ctx context.Context, schema string) error {
	db, err := service.OpenDB(w.cfg.Postgres, "orders-demo-"+w.id)
	if err != nil {
		return err
	}
	w.db = db
	w.defers(db.Close)
	if _, err := db.ExecContext(ctx, `CREATE SCHEMA "`+schema+`"`); err != nil {
		return err
	}
	if w.shared(devstack.Postgres) {
		w.defers(func() error {
			ctx, cancel := cleanup()
			defer cancel()
			// The server may not have noticed yet that an instance is gone.
			_, err := db.ExecContext(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE $1`, w.session("%"))
			if err == nil {
				_, err = db.ExecContext(ctx, `DROP SCHEMA "`+schema+`" CASCADE`)
			}
			if err != nil {
				return fmt.Errorf("drop schema %s: %w", schema, err)
			}
			return nil
		})
	}
	return service.Migrate(ctx, db)
}

func (w *world) openRedis(ctx context.Context) error {
	opts, err := redis.ParseURL(w.cfg.Redis)
	if err != nil {
		return err
	}
	w.rdb = redis.NewClient(opts)
	w.defers(w.rdb.Close)
	if w.shared(devstack.Redis) {
		w.defers(func() error {
			ctx, cancel := cleanup()
			defer cancel()
			keys, err := w.keys(ctx, "*")
			if err == nil && len(keys) > 0 {
				err = w.rdb.Unlink(ctx, keys...).Err()
			}
			if err != nil {
				return fmt.Errorf("remove keys %s:*: %w", w.cfg.Prefix, err)
			}
			return nil
		})
	}
	return w.rdb.Ping(ctx).Err()
}

// locks returns the keys of locks in Redis. The layout is documented in package reentrant:
// PREFIX:{SHARD}:lock:NAME.
func (w *world) locks(ctx context.Context, name string) ([]string, error) {
	return w.keys(ctx, "{*}:lock:"+name)
}

// keys returns the keys of this run in Redis.
func (w *world) keys(ctx context.Context, pattern string) ([]string, error) {
	var keys []string
	it := w.rdb.Scan(ctx, 0, w.cfg.Prefix+":"+pattern, 1000).Iterator()
	for it.Next(ctx) {
		keys = append(keys, it.Val())
	}
	return keys, it.Err()
}

// start starts an instance.
func (w *world) start(name string) error {
	cfg := childConfig{Service: w.cfg, Seed: w.opts.Seed, Partitions: partitions}
	cfg.Service.Name = name
	var err error
	if cfg.Service.Postgres, err = with(w.cfg.Postgres, "application_name", w.session(name)); err != nil {
		return err
	}
	in, err := startInstance(cfg, w.log, w.journal.tell, func(err error) { w.cancel(err) })
	if err != nil {
		return err
	}
	w.instances[name] = in
	return nil
}

// session is the name by which Postgres knows the connections of an instance.
func (w *world) session(instance string) string { return "orders-demo-" + w.id + "-" + instance }

// lookAtScanLock notes how deep the lock of the scan job is held, while an instance is
// waiting for the answer.
func (w *world) lookAtScanLock(ctx context.Context, m marking) {
	seen := depthSeen{marking: m}
	seen.depth, seen.err = w.depth(ctx, m.Grant.Lock)
	w.journal.change(func() {
		w.journal.markings = append(w.journal.markings, seen)
		w.journal.hold(m.From, m.Grant, position{}, "")
	})
}

// depth returns how deep a lock is held: the count of its owner in the lock's hash, whose
// other field, @fence, is the number of the grant.
func (w *world) depth(ctx context.Context, lock string) (int, error) {
	keys, err := w.locks(ctx, lock)
	if err != nil {
		return 0, err
	}
	for _, key := range keys {
		fields, err := w.rdb.HGetAll(ctx, key).Result()
		if err != nil {
			return 0, err
		}
		for field, value := range fields {
			if field == "@fence" {
				continue
			}
			var depth int
			_, err := fmt.Sscan(value, &depth)
			return depth, err
		}
	}
	return 0, nil
}
