package service

import (
	"context"
	"log/slog"

	"github.com/onceward/onceward/consumer"
	"go.uber.org/fx"
)

type cp struct {
	fx.In
	Config consumer.Config
	Routes []consumer.Route `group:"routes"`
	Logger *slog.Logger
}

var standins = fx.Options(
	fx.Provide(func(p cp) (*consumer.Consumer, error) {
		p.Config.Logger = p.Logger
		return consumer.New(p.Config, p.Routes...)
	}),
	fx.Invoke(func(lc fx.Lifecycle, sd fx.Shutdowner, c *consumer.Consumer) {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		lc.Append(fx.StartStopHook(func() {
			go func() {
				err := c.Run(ctx)
				done <- err
				if ctx.Err() == nil {
					sd.Shutdown(fx.ExitCode(1))
				}
			}()
		}, func(context.Context) error { cancel(); return <-done }))
	}),
)
