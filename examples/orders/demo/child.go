package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"

	"github.com/onceward/onceward/examples/orders/service"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/middleware"
	"github.com/onceward/onceward/reentrant"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/fx"
)

// childEnv holds the [childConfig] of a child, in JSON.
const childEnv = "ORDERS_DEMO_CHILD"

// reportFD is the end of the pipe that a child writes its reports to.
const reportFD = 3

type childConfig struct {
	Service    service.Config
	Seed       uint64
	Partitions int32
}

// Child runs an instance of the service on behalf of [Main]. It ends when its standard
// input does, which also happens when the parent is killed.
func Child() error {
	var cfg childConfig
	if err := json.Unmarshal([]byte(os.Getenv(childEnv)), &cfg); err != nil {
		return fmt.Errorf("%s must be set by the demo: %w", childEnv, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil)).With("instance", cfg.Service.Name)
	r := &reporter{cfg: cfg, to: os.NewFile(reportFD, "reports"), holds: map[*middleware.Message]*reentrant.Lease{}}
	hooks := service.Hooks{Holding: r.holding, Decided: r.decided, Scanned: r.scanned, Marking: r.marking}
	parts := []any{r.repeat}
	if cfg.Service.Guard.Claims() {
		parts = append(parts, r.watchClaims)
	}
	return service.Run(ctx, cfg.Service, hooks, log, fx.Decorate(parts...))
}

// A reporter is the service's hooks in a child.
type reporter struct {
	cfg childConfig
	to  *os.File

	mu    sync.Mutex // guards holds
	holds map[*middleware.Message]*reentrant.Lease
}

// send writes one line. A line is shorter than what a pipe takes at once, so it arrives
// whole or not at all, whatever happens to this process.
func (r *reporter) send(rep report) {
	line, err := json.Marshal(rep)
	if err != nil {
		panic(err) // not with these fields
	}
	_, _ = r.to.Write(append(line, '\n')) // without a parent this process ends by its stdin
}

func positionOf(rec *kgo.Record) position { return position{rec.Topic, rec.Partition, rec.Offset} }

func grantOf(l *reentrant.Lease) grant {
	if l == nil {
		return grant{}
	}
	return grant{Lock: l.Name(), Owner: l.OwnerDigest(), Fence: l.Fence()}
}

func (r *reporter) holding(ctx context.Context, m *middleware.Message) {
	lease, _ := reentrant.FromContext(ctx, m.Key)
	r.mu.Lock()
	r.holds[m] = lease
	r.mu.Unlock()
	r.send(report{Holding: &holding{At: positionOf(m.Record), ID: m.ID, Grant: grantOf(lease)}})
}

func (r *reporter) decided(e middleware.Event) {
	r.mu.Lock()
	lease := r.holds[e.Message]
	delete(r.holds, e.Message)
	r.mu.Unlock()

	o := &outcome{
		At:      positionOf(e.Message.Record),
		ID:      e.Message.ID,
		Grant:   grantOf(lease),
		Decided: e.Class == middleware.Decided,
		Result:  result(e),
	}
	var lost *reentrant.LostError
	if lease != nil && errors.As(context.Cause(lease.Context()), &lost) {
		o.Lost = lost.Reason.String()
	}
	var stale *inbox.StaleError
	if errors.As(e.Err, &stale) {
		o.Stored = stale.Stored
	}
	if e.Err != nil {
		o.Err = fmt.Sprintf("%.300s", e.Err)
	}
	r.send(report{Outcome: o})
}

func result(e middleware.Event) string {
	switch {
	case e.Outcome != 0:
		return e.Outcome.String()
	case errors.Is(e.Err, reentrant.ErrBusy):
		return resultBusy
	case e.Err == nil:
		return resultApplied
	case e.Class == middleware.Decided:
		return resultSkipped
	}
	return e.Class.String()
}

func (r *reporter) scanned(s service.Round) {
	rep := &round{Announced: s.Announced, Busy: errors.Is(s.Err, reentrant.ErrBusy)}
	if s.Err != nil {
		rep.Err = fmt.Sprintf("%.300s", s.Err)
	}
	r.send(report{Round: rep})
}

// marking asks the parent, which looks into Redis meanwhile, or never answers.
func (r *reporter) marking(ctx context.Context, events []service.Event) error {
	lease, _ := reentrant.FromContext(ctx, service.ScanLock)
	return r.ask(ctx, markingPath, marking{From: r.cfg.Service.Name, Count: len(events), Grant: grantOf(lease)})
}
