package inbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// PurgeConfig says which rows [Inbox.Purge] removes, and how gently.
type PurgeConfig struct {
	// Retention is how long rows are kept, by the clock of the database. A message
	// that is delivered again after its row is gone takes effect again, unless it
	// comes from an offset that is marked.
	//
	// Required; at least 1m.
	Retention time.Duration

	// TopicRetention is the longest time for which the messages can be delivered
	// again: retention.ms of their topics, or how long other senders go on trying.
	// Purge refuses a Retention that is shorter, unless Marks is set.
	//
	// Required.
	TopicRetention time.Duration

	// Marks is for those who call [Inbox.Mark] and give each message its [Position].
	// Retention may then be shorter than TopicRetention: it is how long a row is kept whose
	// offset is marked, while all others are kept for TopicRetention, and so are marks. An offset has
	// to be marked for half of Retention before that counts.
	//
	// A mark does not know the ID: a message that comes again at another offset, or
	// without a position, after its row is gone, takes effect again; and a new message at an
	// offset that is used again, after an unclean election of a leader, does not. Nor does it
	// know an answer: a duplicate whose row is gone has none.
	//
	// Set it once all processes that share the scope know marks, and the positions of
	// their messages. Retention must be long enough for the longest claim, see
	// [Config.FenceRetention], to be over in half of it.
	Marks bool

	// Every is the pause between two walks through the tables.
	//
	// Defaults to a sixteenth of Retention, from 1m to 1h.
	Every time.Duration

	// RoundTime is how long one round may take: rounds grow and shrink to meet it.
	//
	// Defaults to 100ms.
	RoundTime time.Duration
}

// unmarked is how long rows are kept that nobody has marked.
func (c PurgeConfig) unmarked() time.Duration {
	if c.Marks {
		return max(c.Retention, c.TopicRetention)
	}
	return c.Retention
}

func (c PurgeConfig) withDefaults() PurgeConfig {
	c.Every = cmp.Or(c.Every, min(max(c.Retention/16, time.Minute), time.Hour))
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
	} else if c.Retention < c.TopicRetention && !c.Marks {
		errs = append(errs, fmt.Errorf("Retention is %v, must be at least TopicRetention (%v) without Marks", c.Retention, c.TopicRetention))
	}
	if c.Every <= 0 {
		errs = append(errs, fmt.Errorf("Every is %v, must be above 0", c.Every))
	}
	if c.RoundTime <= 0 {
		errs = append(errs, fmt.Errorf("RoundTime is %v, must be above 0", c.RoundTime))
	}
	return errors.Join(errs...)
}

// purgeSQL removes old rows of a range of pages. In: the range, scope, the least age in
// milliseconds of what may go, and that of what may go though nobody has marked it. Out:
// nothing.
//
// A dead letter is not done: people may want it again, so its mark does not count. Rows
// that somebody has locked are left for the next walk. With IS TRUE no index on
// created_at can be used in place of the range of pages.
const purgeSQL = `
DELETE FROM {inbox} WHERE ctid = ANY (ARRAY(
  SELECT i.ctid FROM {inbox} i
  WHERE i.ctid >= $1::text::tid AND i.ctid < $2::text::tid AND i.scope = $3::int
    AND (i.created_at < (SELECT now() - $4::bigint * interval '1 millisecond')) IS TRUE
    AND (i.created_at < (SELECT now() - $5::bigint * interval '1 millisecond')
      OR NOT i.dead AND i.off < (SELECT max(k.ripe) FROM {inbox_mark} k WHERE k.scope = i.scope AND k.topic = i.topic
        AND k.part = i.part AND k.first <= i.off))
  FOR UPDATE OF i SKIP LOCKED))`

// Purge removes what is old, round after round, until ctx ends; then it returns nil: rows of
// the inbox's scope, see [PurgeConfig]; its marks of offsets that their topics have
// forgotten; and fences of any scope, see [Config.FenceRetention].
//
// It walks through the tables from end to end, so what it costs depends on the size of
// the tables and not on how much is old. Any number of processes may run it: one
// works at a time, and each goes on from where the last one was. Rounds have a transaction
// each, and do not wait for locks of others. What is removed makes room for new rows
// when autovacuum has passed. An error of the database is logged, and
// tried again after [PurgeConfig.Every]. Only a mistake in cfg is returned.
func (b *Inbox) Purge(ctx context.Context, cfg PurgeConfig) error {
	cfg = cfg.withDefaults()
	err := cfg.validate()
	if least := 2 * b.cfg.longestClaim(); cfg.Marks && cfg.Retention < least {
		err = errors.Join(err, fmt.Errorf("Retention is %v, must be at least %v for marks (with this LockTimeout)", cfg.Retention, least))
	}
	if err != nil {
		return fmt.Errorf("inbox: purge: %w", err)
	}
	walks := []*walk{b.rowWalk(cfg)}
	if b.cfg.FenceRetention != KeepForever {
		walks = append(walks, b.fenceWalk(cfg))
	}
	for {
		for _, w := range walks {
			if err := w.walk(ctx); err != nil && ctx.Err() == nil {
				b.cfg.Logger.Warn("inbox: purge failed, it is tried again", "error", err, "again_in", cfg.Every)
			}
		}
		pause := time.NewTimer(cfg.Every)
		select {
		case <-ctx.Done():
			pause.Stop()
			return nil
		case <-pause.C:
		}
	}
}

// rowWalk is the walk through the rows of the inbox's scope.
func (b *Inbox) rowWalk(cfg PurgeConfig) *walk {
	args := func(scope int64) []any {
		return []any{strconv.FormatInt(scope, 10), milliseconds(cfg.Retention), milliseconds(cfg.unmarked())}
	}
	w := newWalk(b, "{inbox}", b.scopeID, cfg.Every, cfg.RoundTime, purgeSQL, args)
	w.first = func(ctx context.Context, t *txn, scope int64) error {
		if err := b.ripen(ctx, t, scope, cfg); err != nil {
			return err
		}
		return b.dropAttempts(ctx, t, scope, cfg)
	}
	return w
}

const (
	forgetSQL       = `UPDATE {inbox} SET id = '', result = NULL WHERE key = $1::uuid`
	forgetTryingSQL = `UPDATE {inbox_attempt} SET id = '', last = '' WHERE key = $1::uuid`
	forgetTaskSQL   = `UPDATE {inbox_task} SET id = '' WHERE key = $1::uuid`
)

// Forget erases what can be read of a message, its ID and its result, and keeps the
// rest: further deliveries are duplicates as before. What is parked behind a dead letter
// stays as it is until [Inbox.Unpark]. It reports whether there was a row of the message.
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
	for _, statement := range []string{forgetSQL, forgetTryingSQL, forgetTaskSQL} {
		result, err := t.tx.ExecContext(ctx, b.in(statement), e.key.text())
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
	Dead   int64         // rows of this inbox's scope that were given up
	Failed int64         // messages of this inbox's scope that have failed and are not decided, see [Config.MaxAttempts]
	Behind int64         // messages of this inbox's scope that are parked behind dead letters, those included, see [Config.ParkKey]
	Marks  int64         // runs of offsets of this inbox's scope that are marked, see [Inbox.Mark]
	Fences int64         // rows of inbox_fence, estimated
	Tasks  int64         // rows of inbox_task: being worked on, of unknown fate, or parked
	Parked int64         // those of them that are parked
}

// statsSQL reads all rows, once: there is no index by age.
const statsSQL = `
SELECT greatest((SELECT reltuples FROM pg_class WHERE oid = '{inbox}'::regclass), 0)::bigint AS rows,
  pg_total_relation_size('{inbox}'::regclass) AS bytes,
  coalesce(extract(epoch FROM clock_timestamp() - r.oldest) * 1000, 0)::bigint AS oldest, r.dead,
  (SELECT count(*) FROM {inbox_attempt} WHERE scope = $1::int) AS failed,
  (SELECT count(*) FROM {inbox_parked} WHERE scope = $1::int) AS behind,
  (SELECT count(*) FROM {inbox_mark} WHERE scope = $1::int) AS marks,
  greatest((SELECT reltuples FROM pg_class WHERE oid = '{inbox_fence}'::regclass), 0)::bigint AS fences,
  (SELECT count(*) FROM {inbox_task}) AS tasks,
  (SELECT count(*) FROM {inbox_task} WHERE state = 'parked') AS parked
FROM (SELECT min(created_at) AS oldest, count(*) FILTER (WHERE dead) AS dead FROM {inbox} WHERE scope = $1::int) AS r`

// Stats returns the sizes of the tables. It reads all rows of the scope, so ask no
// more often than once in a while.
func (b *Inbox) Stats(ctx context.Context) (Stats, error) {
	scope, err := b.scopeID(ctx)
	if err != nil {
		return Stats{}, err
	}
	var s Stats
	if err := b.getAlone(ctx, &s, b.in(statsSQL), scope); err != nil {
		return Stats{}, fmt.Errorf("inbox: stats: %w", err)
	}
	s.Oldest *= time.Millisecond // what was read is a count of these
	return s, nil
}
