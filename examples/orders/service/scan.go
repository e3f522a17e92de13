package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"
	"github.com/onceward/onceward/reentrant"
)

// ScanLock is the name of the lock of the scan job.
const ScanLock = "job:scan"

// A Publisher tells Kafka about events. It returns when all of them are stored there.
type Publisher interface {
	Publish(ctx context.Context, events []Event) error
}

// A Scanner announces orders whose deadline is over.
type Scanner struct {
	db     *sqlx.DB
	locker *reentrant.Locker
	pub    Publisher
	hooks  Hooks
	limit  int
	every  time.Duration
	log    *slog.Logger
}

// A Round is what became of one round of the scan job.
type Round struct {
	Announced int
	Err       error // matches [reentrant.ErrBusy] if another instance was at it
}

// NewScanner returns a scanner that [Scanner.Run] starts.
func NewScanner(cfg Config, db *sqlx.DB, locker *reentrant.Locker, pub Publisher, hooks Hooks, log *slog.Logger) *Scanner {
	return &Scanner{db: db, locker: locker, pub: pub, hooks: hooks.withDefaults(), limit: cfg.ScanBatch, every: cfg.ScanEvery, log: log}
}

// Run scans until ctx ends.
func (s *Scanner) Run(ctx context.Context) {
	tick := time.NewTicker(s.every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		n, err := s.Scan(ctx)
		s.hooks.Scanned(Round{n, err})
		if err != nil && !errors.Is(err, reentrant.ErrBusy) && ctx.Err() == nil {
			s.log.Warn("scan failed, trying again", "again_in", s.every, "error", err)
		}
	}
}

// Scan does one round, and returns how many orders it announced. It does not wait: if
// another instance holds the lock, the error matches [reentrant.ErrBusy].
func (s *Scanner) Scan(ctx context.Context) (announced int, err error) {
	err = s.locker.Do(ctx, ScanLock, func(ctx context.Context) error {
		events, err := s.overdue(ctx)
		if err != nil || len(events) == 0 {
			return err
		}
		// First tell, then mark. A crash in between tells again, which does no harm; the
		// other way round it would lose the timeout for ever.
		if err := s.pub.Publish(ctx, events); err != nil {
			return fmt.Errorf("publish: %w", err)
		}
		announced = len(events)
		return s.Mark(ctx, events)
	}, reentrant.WaitAtMost(0))
	return announced, err
}

// overdueSQL also finds orders that are closed: what was told and not marked is told
// again until it is marked, whatever became of it meanwhile.
const overdueSQL = `
SELECT id, extract(epoch FROM deadline)::bigint FROM orders
WHERE announced_at IS NULL AND state <> 'paid' AND deadline <= now()
ORDER BY deadline, id LIMIT $1`

func (s *Scanner) overdue(ctx context.Context) ([]Event, error) {
	rows, err := s.db.QueryContext(ctx, overdueSQL, s.limit)
	if err != nil {
		return nil, fmt.Errorf("look for overdue orders: %w", err)
	}
	defer rows.Close()
	var events []Event
	for rows.Next() {
		e := Event{Kind: Timeout}
		if err := rows.Scan(&e.Order, &e.Deadline); err != nil {
			return nil, fmt.Errorf("look for overdue orders: %w", err)
		}
		events = append(events, e)
	}
	return events, rows.Err()
}

const markSQL = `UPDATE orders SET announced_at = now() WHERE id = ANY ($1) AND announced_at IS NULL`

// Mark notes that the events were told, so that no round tells them again. It takes
// the lock of the job itself, since not only the job may call it: under the job's
// context it enters the lock once more, from anywhere else it waits for the job.
func (s *Scanner) Mark(ctx context.Context, events []Event) error {
	return s.locker.Do(ctx, ScanLock, func(ctx context.Context) error {
		if err := s.hooks.Marking(ctx, events); err != nil {
			return fmt.Errorf("marking: %w", err)
		}
		ids := make(pq.Int64Array, len(events))
		for i, e := range events {
			ids[i] = e.Order
		}
		if _, err := s.db.ExecContext(ctx, markSQL, ids); err != nil {
			return fmt.Errorf("mark orders as announced: %w", err)
		}
		return nil
	})
}
