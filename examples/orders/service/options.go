package service

import (
	"context"
	"log/slog"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/consumerfx"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/inbox/inboxfx"
	"github.com/onceward/onceward/middleware"
	"github.com/onceward/onceward/reentrant"
	"github.com/onceward/onceward/reentrant/reentrantfx"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/fx"
	"go.uber.org/fx/fxevent"
)

// options is the service as an Fx application.
func options(cfg Config, c clients, hooks Hooks, log *slog.Logger) fx.Option {
	return fx.Options(
		fx.WithLogger(func() fxevent.Logger {
			l := &fxevent.SlogLogger{Logger: log}
			l.UseLogLevel(slog.LevelDebug)
			return l
		}),
		fx.StopTimeout(stopWithin),
		fx.Supply(cfg, hooks.withDefaults(), log),
		fx.Provide(func(lc fx.Lifecycle) clients {
			// The first hook, since all others need what it checks.
			lc.Append(fx.StartHook(func(ctx context.Context) error { return check(ctx, c.DB) }))
			return c
		}),

		reentrantfx.Module, // the locks
		inboxfx.Module,     // the inbox
		consumerfx.Module,  // the consumer, which runs from start to stop

		fx.Provide(lockConfig, inboxConfig, consumerConfig, NewHandler, newRoute, newPublisher, newScanner),
		fx.Invoke(func(*Scanner) {}), // nobody else asks for it
	)
}

// stopWithin is what all parts have to stop. The consumer's drain is the longest.
const stopWithin = 15 * time.Second

func lockConfig(cfg Config) reentrant.Config {
	return reentrant.Config{Prefix: cfg.Prefix, TTL: cfg.Lease}
}

func inboxConfig(cfg Config) inbox.Config {
	return inbox.Config{Consumer: cfg.Group, LockTimeout: cfg.LockWait}
}

func consumerConfig(cfg Config) consumer.Config {
	return consumer.Config{
		Group: cfg.Group,
		Client: []kgo.Opt{
			kgo.SeedBrokers(cfg.Brokers...),
			kgo.ClientID(cfg.Name),
		},
		BatchMax:          16, // each message of a batch costs a call of the payment service
		SessionTimeout:    cfg.Session,
		HeartbeatInterval: min(cfg.Session/6, 3*time.Second),
		CommitEvery:       250 * time.Millisecond,
		DrainTimeout:      5 * time.Second,
		RebalanceTimeout:  20 * time.Second,
	}
}

type routes struct {
	fx.Out

	Route consumer.Route `group:"routes"`
}

func newRoute(cfg Config, h middleware.Handler) routes {
	return routes{Route: consumer.Route{
		Topics:   []string{cfg.Topic, cfg.RetryTopic},
		Identify: Identify,
		Handler:  h,
	}}
}

func newScanner(lc fx.Lifecycle, cfg Config, db *sqlx.DB, locker *reentrant.Locker, pub Publisher, hooks Hooks, log *slog.Logger) *Scanner {
	s := NewScanner(cfg, db, locker, pub, hooks, log)
	ctx, cancel := context.WithCancel(context.Background()) // of the scan loop: from start to stop
	done := make(chan struct{})
	lc.Append(fx.StartStopHook(
		func() {
			go func() {
				defer close(done)
				s.Run(ctx)
			}()
		},
		func() {
			cancel()
			<-done // a round under way ends with its context
		},
	))
	return s
}
