package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/onceward/onceward/inbox"
	"github.com/twmb/franz-go/pkg/kgo"
)

// A session is one Run of a consumer.
type session struct {
	cfg  Config
	log  *slog.Logger
	base context.Context // of handlers and last commits: has the values of Run's, but not its end

	client     *kgo.Client
	made       chan struct{} // closed once client is set
	disp       *dispatcher
	health     *health
	workers    sync.WaitGroup
	committing chan struct{} // holds a token while a commit is under way
	marking    marking
	flowMu     sync.Mutex // keeps pause and resume calls in order
	halt       context.CancelCauseFunc
}

func newSession(ctx context.Context, cfg Config, routes []Route) *session {
	base := context.WithoutCancel(ctx)
	return &session{
		cfg:        cfg,
		log:        cfg.Logger,
		base:       base,
		made:       make(chan struct{}),
		disp:       newDispatcher(base, cfg, routes),
		health:     newHealth(cfg.Logger),
		committing: make(chan struct{}, 1),
		marking:    marking{runs: make(map[*part]inbox.Run), last: time.Now()},
	}
}

// run consumes until ctx ends or there is a reason to give up.
func (s *session) run(ctx context.Context) error {
	clientCtx, kill := context.WithCancel(s.base)
	defer kill()
	err := s.newClient(clientCtx)
	if err != nil {
		return err
	}
	// work ends with ctx, or with the cause for which a handler halts us.
	work, halt := context.WithCancelCause(ctx)
	defer halt(nil)
	s.halt = halt

	if err = s.connect(work); err == nil {
		err = s.consume(work)
	}
	if cause := context.Cause(work); err == nil && cause != context.Cause(ctx) {
		err = cause // a handler halted us
	}
	s.leave(kill)
	return errors.Join(err, s.abandoned())
}

// consume polls, handles and commits until ctx ends or it makes no sense to go on,
// and then drains.
func (s *session) consume(ctx context.Context) error {
	for range s.cfg.Workers {
		s.workers.Go(s.work)
	}
	loops, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() { s.commitLoop(loops) })
	wg.Go(func() { s.watchTopics(loops) })

	err := s.pollLoop(ctx)
	stop()
	// Drain and commit while still a member: the client sends no heartbeats while
	// it leaves.
	s.disp.close()
	s.drain(s.disp.all(), ErrShutdown)
	wg.Wait()
	return err
}

// leave leaves the group and closes the client, within a bound even if no broker
// answers.
func (s *session) leave(kill context.CancelFunc) {
	ctx, cancel := context.WithTimeout(s.base, leaveTimeout)
	defer cancel()
	s.client.AllowRebalance()
	if err := s.client.LeaveGroupContext(ctx); err != nil {
		s.log.Warn("group not left, it will notice by the session timeout", "error", err)
	}
	if ctx.Err() != nil {
		kill()
	}
	s.client.CloseAllowingRebalance()
}

// abandoned waits for the workers, but not for handlers that had their time.
func (s *session) abandoned() error {
	done := make(chan struct{})
	go func() {
		s.workers.Wait()
		close(done)
	}()
	timeout := time.NewTimer(cancelGrace)
	defer timeout.Stop()
	select {
	case <-done:
		return nil
	case <-timeout.C:
		return fmt.Errorf("%w: %w", ErrAbandoned, errors.Join(s.disp.inHandlers()...))
	}
}
