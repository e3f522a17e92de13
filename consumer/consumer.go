package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
)

// A Consumer consumes topics as a member of a group. Its methods may be called
// from several goroutines.
type Consumer struct {
	cfg     Config
	routes  []Route
	started atomic.Bool

	mu      sync.Mutex
	session *session // while Run runs
}

// New returns a consumer that [Consumer.Run] starts. It does no I/O. The error
// names every mistake in the configuration and the routes.
func New(cfg Config, routes ...Route) (*Consumer, error) {
	cfg = cfg.withDefaults()
	if err := errors.Join(cfg.validate(), validateRoutes(routes)); err != nil {
		return nil, fmt.Errorf("consumer: %w", err)
	}
	routes = slices.Clone(routes)
	for i := range routes {
		routes[i].Topics = slices.Clone(routes[i].Topics)
	}
	cfg.Client = slices.Clone(cfg.Client)
	return &Consumer{cfg: cfg, routes: routes}, nil
}

// Run joins the group and handles records until ctx ends; then it gives handlers
// the drain timeout, commits what is decided, leaves the group and returns nil.
//
// It returns an error if a broker refuses it or none answers within
// Config.ConnectTimeout, after draining if a handler returned an error of class
// [github.com/onceward/onceward/middleware.Halt] or if the group refuses this
// member for good, and one that matches [ErrAbandoned] if handlers went on after
// their context had ended. A Consumer runs once: another call returns [ErrStarted].
//
// Handlers run on goroutines of Run, with the values of ctx, but not with its end:
// their context ends with cause [ErrRevoked] or [ErrShutdown] if they outlast
// the drain timeout. A handler must not wait for Run to return.
func (c *Consumer) Run(ctx context.Context) error {
	if !c.started.CompareAndSwap(false, true) {
		return ErrStarted
	}
	s := newSession(ctx, c.cfg, c.routes)
	c.set(s)
	defer c.set(nil)
	if err := s.run(ctx); err != nil {
		return fmt.Errorf("consumer: %w", err)
	}
	return nil
}

func (c *Consumer) set(s *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.session = s
}

// shown is how many stopped lanes the error of Ready names.
const shown = 10

// Ready returns nil if the group was joined and nothing stands still: no topic
// is missing, no partition unreadable, and no lane stopped. Otherwise the error
// says what does; for a stopped lane it holds a [*MessageError]. It does not block.
func (c *Consumer) Ready() error {
	c.mu.Lock()
	s := c.session
	c.mu.Unlock()
	if s == nil {
		return ErrNotRunning
	}
	errs := s.health.errs()
	dead := s.disp.stoppedLanes()
	for i, e := range dead {
		if i == shown {
			errs = append(errs, fmt.Errorf("and %d more lanes are stopped", len(dead)-shown))
			break
		}
		errs = append(errs, fmt.Errorf("lane stopped: %w", e))
	}
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("consumer: %w", errors.Join(errs...))
}
