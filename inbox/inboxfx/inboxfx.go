// Package inboxfx wires package inbox into an Fx application.
//
// It checks the database at start and never changes it. If something is missing,
// the application does not start, and the error names the DDL to run:
//
//	fx.New(
//		inboxfx.Module,
//		fx.Provide(openDB), // *sqlx.DB
//		fx.Supply(inbox.Config{Consumer: "billing"}),
//		fx.Supply(&inbox.PurgeConfig{Retention: 8 * 24 * time.Hour, TopicRetention: 7 * 24 * time.Hour}), // optional
//	)
package inboxfx

import (
	"context"
	"log/slog"

	"github.com/jmoiron/sqlx"
	"go.uber.org/fx"

	"github.com/onceward/onceward/inbox"
)

// Module provides an [*inbox.Inbox] whose tables are checked before anything that
// was given it starts.
var Module = fx.Module("inbox", fx.Provide(New))

// Params are what [New] needs from the application.
type Params struct {
	fx.In

	Config inbox.Config
	DB     *sqlx.DB
	Purge  *inbox.PurgeConfig `optional:"true"` // removes old rows while the application runs
	Logger *slog.Logger       `optional:"true"` // unless Config.Logger is set
}

// Result is what [New] gives to the application.
type Result struct {
	fx.Out

	Inbox *inbox.Inbox
}

func (p Params) config() inbox.Config {
	if p.Config.Logger == nil {
		p.Config.Logger = p.Logger
	}
	return p.Config
}

// New builds an inbox and has it checked when the application starts. It does no
// I/O and starts nothing. The pool stays the application's.
func New(lc fx.Lifecycle, p Params) (Result, error) {
	box, err := inbox.New(p.DB, p.config())
	if err != nil {
		return Result{}, err
	}
	lc.Append(fx.StartHook(func(ctx context.Context) error {
		return inbox.Check(ctx, p.DB, inbox.InSchema(p.Config.Schema), inbox.WithTable(p.Config.Table))
	}))
	if p.Purge != nil {
		return Result{Inbox: box}, purge(lc, box, *p.Purge)
	}
	return Result{Inbox: box}, nil
}

// purge removes old rows from start to stop.
func purge(lc fx.Lifecycle, box *inbox.Inbox, cfg inbox.PurgeConfig) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background()) // not that of the start hook, which ends with the start
	done := make(chan error, 1)
	lc.Append(fx.StartStopHook(
		func() {
			go func() { done <- box.Purge(ctx, cfg) }()
		},
		func(stop context.Context) error {
			cancel()
			select {
			case err := <-done:
				return err
			case <-stop.Done():
				return context.Cause(stop)
			}
		},
	))
	return nil
}
