// Package consumerfx wires package consumer into an Fx application.
//
// The application supplies a [consumer.Config], the options of the Kafka client
// (named "kafka", unless Config.Client has them) and its routes (group "routes"):
//
//	fx.New(
//		consumerfx.Module,
//		fx.Supply(consumer.Config{Group: "orders"}),
//		fx.Provide(
//			fx.Annotate(kafkaOptions, fx.ResultTags(`name:"kafka"`)),
//			fx.Annotate(timeoutRoute, fx.ResultTags(`group:"routes"`)),
//		),
//	)
//
// The consumer starts with the application, which does not wait for the group to
// be joined: ask [consumer.Consumer.Ready]. It stops before what its routes were
// built from. A consumer that gives up takes the application down with exit code 1.
//
// All stop hooks share one timeout (15 s by default); the consumer needs up to
// Config.DrainTimeout and 5 s of it.
package consumerfx

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	"github.com/onceward/onceward/consumer"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/fx"
)

// Module provides a [*consumer.Consumer] and runs it from start to stop.
var Module = fx.Module(
	"consumer",
	fx.Provide(New),
	fx.Invoke(run), // a consumer that nothing else asks for must still run
)

// Params are what [New] needs from the application.
type Params struct {
	fx.In

	Config consumer.Config
	Client []kgo.Opt        `name:"kafka" optional:"true"` // come after those of Config.Client
	Routes []consumer.Route `group:"routes"`               // a set: topics do not overlap
	Logger *slog.Logger     `optional:"true"`              // used if Config.Logger is nil
}

// Result is what [New] gives to the application.
type Result struct {
	fx.Out

	Consumer *consumer.Consumer
}

// New builds a consumer. It does no I/O and starts nothing.
func New(p Params) (Result, error) {
	cfg := p.Config
	cfg.Client = slices.Concat(cfg.Client, p.Client)
	if cfg.Logger == nil {
		cfg.Logger = p.Logger
	}
	c, err := consumer.New(cfg, p.Routes...)
	return Result{Consumer: c}, err
}

func run(lc fx.Lifecycle, sd fx.Shutdowner, c *consumer.Consumer) {
	// Not the context of OnStart: that one ends when start-up does.
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	lc.Append(fx.StartStopHook(
		func() {
			go func() {
				err := c.Run(ctx) // nil once ctx ends
				done <- err
				if ctx.Err() == nil { // gave up by itself: take the app down
					_ = sd.Shutdown(fx.ExitCode(1)) // fails only if the app is going down already
				}
			}()
		},
		func(stopCtx context.Context) error {
			cancel()
			select {
			case err := <-done:
				return err
			case <-stopCtx.Done():
				return fmt.Errorf("consumer: still draining: %w", context.Cause(stopCtx))
			}
		},
	))
}
