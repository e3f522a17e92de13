package inbox

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// PurgeConfig says which rows [Inbox.Purge] removes, and how gently.
type PurgeConfig struct {
	// Retention is how long rows are kept, by the clock of the database. A message
	// that is delivered again after its row is gone takes effect again.
	//
	// Required; at least 1m.
	Retention time.Duration

	// TopicRetention is the longest time for which the messages can be delivered
	// again: retention.ms of their topics, or how long other senders go on trying.
	// Purge refuses a Retention that is shorter.
	//
	// Required.
	TopicRetention time.Duration

	// Every is the pause before the next look when there is nothing left to remove.
	//
	// Defaults to 1m.
	Every time.Duration

	// RoundTime is how long one round may take: rounds grow and shrink to meet it.
	//
	// Defaults to 100ms.
	RoundTime time.Duration
}

func (c PurgeConfig) withDefaults() PurgeConfig {
	c.Every = cmp.Or(c.Every, time.Minute)
	c.RoundTime = cmp.Or(c.RoundTime, 100*time.Millisecond)
	return c
}

// Validate returns every mistake in c. [Inbox.Purge] does so too.
func (c PurgeConfig) Validate() error {
	if err := c.withDefaults().validate(); err != nil {
		return fmt.Errorf("inbox: purge: %w", err)
	}
	return nil
}

func (c PurgeConfig) validate() error {
	var errs []error
	if c.Retention < time.Minute {
		errs = append(errs, fmt.Errorf("Retention is %v, must be at least 1m", c.Retention))
	}
	if c.TopicRetention <= 0 {
		errs = append(errs, fmt.Errorf("TopicRetention is %v, must say how long messages can be delivered again", c.TopicRetention))
	} else if c.Retention < c.TopicRetention {
		errs = append(errs, fmt.Errorf("Retention is %v, must be at least TopicRetention (%v)", c.Retention, c.TopicRetention))
	}
	if c.Every <= 0 {
		errs = append(errs, fmt.Errorf("Every is %v, must be above 0", c.Every))
	}
	if c.RoundTime <= 0 {
		errs = append(errs, fmt.Errorf("RoundTime is %v, must be above 0", c.RoundTime))
	}
	return errors.Join(errs...)
}

const (
	firstRound = 1000
	leastRound = 100
	mostRound  = 50_000

	// purgeLock is the first half of the advisory lock that makes one purger the
	// leader of a scope; the scope is the second.
	purgeLock = 0x6f6e6365
)

// purgeSQL removes old rows. In: the beginning of the range, the end of it as an age
// in milliseconds, scope, and how many rows. Out: how many were removed, and from
// where to go on; nothing if somebody else is the leader.
//
// ARRAY, since the planner may run a subquery with LIMIT more than once. The age
// prunes the table by its BRIN index, from both ends: without the beginning each
// round would walk through what the rounds before have left dead. Rows that
// somebody has locked are left for the next time.
const purgeSQL = `
WITH leader AS MATERIALIZED (
  SELECT set_config('enable_seqscan', 'off', true), set_config('synchronous_commit', 'off', true),
    pg_try_advisory_xact_lock($5::int, $3::int) AS yes
), d AS (
  DELETE FROM {inbox} WHERE key = ANY (ARRAY(
    SELECT i.key FROM {inbox} i
    WHERE (SELECT yes FROM leader) AND i.scope = $3::int AND i.created_at >= $1::timestamptz
      AND i.created_at < now() - $2::bigint * interval '1 millisecond'
    LIMIT $4::int FOR UPDATE OF i SKIP LOCKED))
  RETURNING created_at
)
SELECT (SELECT count(*) FROM d) AS removed, (SELECT max(created_at) FROM d) AS upto, (SELECT yes FROM leader) AS leads`

// Purge removes old rows of the inbox's scope, round after round, until ctx ends;
// then it returns nil. Any number of processes may run it: one at a time works, the
// others look again after [PurgeConfig.Every]. Rounds have a transaction each, and do not wait for
// locks. An error of the database is logged, and tried again after the same
// pause. Only a mistake in cfg is returned.
func (b *Inbox) Purge(ctx context.Context, cfg PurgeConfig) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	p := purger{b: b, cfg: cfg.withDefaults(), statement: b.cfg.names().in(purgeSQL), size: firstRound, from: beginning}
	for {
		more, err := p.round(ctx)
		if err != nil && ctx.Err() == nil {
			b.cfg.Logger.Warn("inbox: purge failed, it is tried again", "error", err, "again_in", p.cfg.Every)
		}
		if more {
			continue
		}
		pause := time.NewTimer(p.cfg.Every)
		select {
		case <-ctx.Done():
			pause.Stop()
			return nil
		case <-pause.C:
		}
	}
}

const beginning = "-infinity"

// A purger is one call of Purge.
type purger struct {
	b         *Inbox
	cfg       PurgeConfig
	statement string
	size      int    // of the next round
	from      string // where it begins
}

// round removes one round of rows, and reports whether there may be more.
func (p *purger) round(ctx context.Context) (more bool, err error) {
	scope, err := p.b.scopeID(ctx)
	if err != nil {
		return false, err
	}
	start := time.Now()
	t, err := p.b.begin(ctx)
	if err != nil {
		return false, err
	}
	defer t.rollback()
	var row struct {
		Removed int
		Upto    sql.NullString
		Leads   bool
	}
	if err := t.tx.GetContext(ctx, &row, p.statement, p.from, milliseconds(p.cfg.Retention), scope, p.size, purgeLock); err != nil {
		p.from = beginning
		return false, err
	}
	if err := t.commit(); err != nil {
		p.from = beginning
		return false, err
	}
	more = row.Leads && row.Removed == p.size
	p.size = nextRound(p.size, row.Removed, time.Since(start), p.cfg.RoundTime)
	p.from = beginning // at the end, for what was locked or came late
	if more {
		p.from = row.Upto.String
	}
	return more, nil
}

// nextRound returns the size of the next round, from how long the last one took.
func nextRound(size, removed int, took, want time.Duration) int {
	switch {
	case took > want:
		size /= 2
	case removed == size && took < want/2:
		size *= 2
	}
	return min(max(size, leastRound), mostRound)
}

const (
	forgetSQL     = `UPDATE {inbox} SET id = '', result = NULL WHERE key = $1::uuid`
	forgetTaskSQL = `UPDATE {inbox_task} SET id = '' WHERE key = $1::uuid`
)

// Forget erases what can be read of a message, its ID and its result, and keeps the
// rest: further deliveries are duplicates as before. It reports whether there was a
// row of the message.
func (b *Inbox) Forget(ctx context.Context, id string) (bool, error) {
	e, err := b.newEntry(0, &Message{ID: id})
	if err != nil {
		return false, err
	}
	t, err := b.begin(ctx)
	if err != nil {
		return false, fmt.Errorf("inbox: forget: %w", err)
	}
	defer t.rollback()
	var rows int64
	for _, statement := range []string{forgetSQL, forgetTaskSQL} {
		result, err := t.tx.ExecContext(ctx, b.cfg.names().in(statement), e.key.text())
		if err != nil {
			return false, fmt.Errorf("inbox: forget: %w", err)
		}
		n, err := result.RowsAffected()
		if err != nil {
			return false, fmt.Errorf("inbox: forget: %w", err)
		}
		rows += n
	}
	if err := t.commit(); err != nil {
		return false, fmt.Errorf("inbox: forget: %w", err)
	}
	return rows > 0, nil
}

// Stats are the sizes of the tables, of all scopes.
type Stats struct {
	Rows   int64         // of inbox, as the database estimates them
	Bytes  int64         // of inbox with its indexes
	Oldest time.Duration // how long ago the oldest row of this inbox's scope was made; 0: none
	Fences int64         // rows of inbox_fence, estimated
	Tasks  int64         // rows of inbox_task: being worked on, of unknown fate, or parked
	Parked int64         // those of them that are parked
}

// statsSQL reads all rows of the scope to find the oldest: BRIN keeps no order.
const statsSQL = `
SELECT greatest((SELECT reltuples FROM pg_class WHERE oid = '{inbox}'::regclass), 0)::bigint AS rows,
  pg_total_relation_size('{inbox}'::regclass) AS bytes,
  coalesce((SELECT extract(epoch FROM clock_timestamp() - min(created_at)) * 1000 FROM {inbox} WHERE scope = $1::int), 0)::bigint AS oldest,
  greatest((SELECT reltuples FROM pg_class WHERE oid = '{inbox_fence}'::regclass), 0)::bigint AS fences,
  (SELECT count(*) FROM {inbox_task}) AS tasks,
  (SELECT count(*) FROM {inbox_task} WHERE state = 'parked') AS parked`

// Stats returns the sizes of the tables. It reads all rows of the scope, so ask no
// more often than once in a while.
func (b *Inbox) Stats(ctx context.Context) (Stats, error) {
	scope, err := b.scopeID(ctx)
	if err != nil {
		return Stats{}, err
	}
	var s Stats
	if err := b.db.GetContext(ctx, &s, b.cfg.names().in(statsSQL), scope); err != nil {
		return Stats{}, fmt.Errorf("inbox: stats: %w", err)
	}
	s.Oldest *= time.Millisecond // what was read is a count of these
	return s, nil
}
