package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"go.uber.org/fx"
)

// Run runs an instance until ctx ends, and then stops it. It returns an error if the
// configuration is wrong, a server does not answer, the schema is not there ([ErrSchema]),
// or the instance gives up by itself or does not stop cleanly. More options may replace
// parts (fx.Decorate).
func Run(ctx context.Context, cfg Config, hooks Hooks, log *slog.Logger, more ...fx.Option) (err error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return err
	}
	c, err := open(cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()

	app := fx.New(options(cfg, c, hooks, log), fx.Options(more...))
	start, cancel := context.WithTimeout(ctx, app.StartTimeout())
	defer cancel()
	if err := app.Start(start); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	code := 0
	select {
	case <-ctx.Done():
	case sig := <-app.Wait():
		code = sig.ExitCode
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), app.StopTimeout())
	defer cancel()
	if err := app.Stop(stop); err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	if code != 0 {
		return fmt.Errorf("a part of the service gave up, see the log (code %d)", code)
	}
	return nil
}
