// Package reentrantfx wires package reentrant into an Fx application.
//
// The application provides a redis.UniversalClient, which stays its own: it is
// closed after the locker, since stop hooks run in reverse. A [reentrant.Config]
// is optional.
package reentrantfx

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/onceward/onceward/reentrant"
	"github.com/redis/go-redis/v9"
	"go.uber.org/fx"
)

// Module provides a [*reentrant.Locker]. Starting the application asks Redis for an
// answer, and whether this process and the others exclude each other; stopping it
// ends all leases.
var Module = fx.Module("reentrant", fx.Provide(New))

// Params are what [New] needs from the application.
type Params struct {
	fx.In

	Lifecycle fx.Lifecycle
	Redis     redis.UniversalClient
	Config    reentrant.Config `optional:"true"`
	Logger    *slog.Logger     `optional:"true"`
}

// Result is what [New] gives to the application.
type Result struct {
	fx.Out

	Locker *reentrant.Locker
}

// New builds a locker. It does no I/O; the hooks do.
func New(p Params) (Result, error) {
	cfg := p.Config
	if cfg.Logger == nil {
		cfg.Logger = p.Logger
	}
	locker, err := reentrant.New(p.Redis, cfg)
	if err != nil {
		return Result{}, err
	}
	p.Lifecycle.Append(fx.Hook{
		OnStart: func(ctx context.Context) error {
			// A start hook that fails cleans up after itself: its stop hook does not run.
			if err := p.Redis.Ping(ctx).Err(); err != nil {
				return errors.Join(fmt.Errorf("reentrant: Redis does not answer, check its address: %w", err), locker.Close())
			}
			if err := locker.Check(ctx); err != nil {
				return errors.Join(err, locker.Close())
			}
			return nil
		},
		OnStop: func(context.Context) error { return locker.Close() },
	})
	return Result{Locker: locker}, nil
}
