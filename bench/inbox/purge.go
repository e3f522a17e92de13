package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/onceward/onceward/bench/internal/compare"
	"github.com/onceward/onceward/bench/internal/drive"
	"github.com/onceward/onceward/inbox"
)

// purgeRows is how many rows lie in the table that a purge works in, at most.
const purgeRows = 3_000_000

// Metrics of the purge.
const removedPerSecond = "removed/s"

// purged has callers insert rows as fast as they can, alone and while a purge removes
// old ones from the same table, which lie among young ones. That they may go is known
// by their marks, which is the most work for the purge. Between two rounds the table
// is filled up again, in the room that the purge has made.
func purged(ctx context.Context, b *bench) error {
	w, err := b.newWorld(ctx, libPQ, 10, inbox.Config{})
	if err != nil {
		return err
	}
	defer w.db.Close()
	p := &purgeWorld{world: w, b: b, rows: min(b.rows, purgeRows)}
	if err := p.fill(ctx); err != nil {
		return err
	}
	const alone, along = "inserts alone", "inserts and a purge"
	res, err := compare.Rounds(ctx, b.rounds, []compare.Case{
		{Name: alone, Run: p.insert},
		{Name: along, Run: p.insertAndPurge},
	})
	if err != nil {
		return err
	}
	var pages int64
	if err := w.db.GetContext(ctx, &pages, `SELECT pg_relation_size('inbox') / 8192`); err != nil {
		return err
	}
	b.Note("%d rows and %d pages at the end, after %d were removed", int64(p.rows)+p.young, pages, p.removed)
	b.Table("purge", res, perSecond, removedPerSecond)
	removed, inserted := res.Of(removedPerSecond, along), res.Of(perSecond, along)
	ratio := make(compare.Values, len(removed))
	for i := range removed {
		ratio[i] = removed[i] / inserted[i]
	}
	b.AtLeast("inbox/purge/removed-of-inserted", ratio, 1)
	b.AtLeast("inbox/purge/inserts-of-alone", res.Ratio(perSecond, along, alone), 0.5)
	return nil
}

// A purgeWorld is a world whose inbox has so many old rows, which a purge may remove,
// and young ones.
type purgeWorld struct {
	*world
	b       *bench
	rows    int   // that are old, at the beginning of a round
	filled  int64 // old rows that were ever made
	young   int64
	removed int64
	turns   int // of measurements: IDs do not come again
}

const (
	oldRowsSQL = `
INSERT INTO inbox (key, scope, id, topic, part, off, created_at)
SELECT key, 1, 'order-' || left(translate(key::text, '-', ''), 26), md5('topic')::uuid, g % 12, g / 12, now() - interval '1 day'
FROM (SELECT g, md5('old' || g)::uuid AS key FROM generate_series($1::bigint, $2::bigint) AS g) AS r
ORDER BY key`
	oldMarksSQL = `
INSERT INTO inbox_mark (scope, topic, part, first, next, seen, ripe)
SELECT 1, md5('topic')::uuid, part, 0, $1::bigint, $1::bigint, $1::bigint FROM generate_series(0, 11) AS part
ON CONFLICT (scope, topic, part, first) DO UPDATE SET next = $1::bigint, seen = $1::bigint, ripe = $1::bigint`
	countOldSQL = `SELECT count(*) FROM inbox WHERE created_at < now() - interval '12 hours'`
)

// fill makes as many old rows as are missing. Young ones go in between.
func (p *purgeWorld) fill(ctx context.Context) error {
	if r := p.box.Apply(ctx, inbox.Message{ID: "first"}, nothing); r.Outcome == inbox.Applied { // the row of the scope
		p.young++
	}
	var now int
	if err := p.db.GetContext(ctx, &now, countOldSQL); err != nil {
		return err
	}
	const step = 250_000
	start := time.Now()
	for now < p.rows {
		n := min(step, p.rows-now)
		if _, err := p.db.ExecContext(ctx, oldRowsSQL, p.filled, p.filled+int64(n)-1); err != nil {
			return err
		}
		now += n
		p.filled += int64(n)
		if p.rows > step {
			fmt.Fprintf(p.b.progress, "inbox: %d of %d old rows, %v\n", now, p.rows, time.Since(start).Round(time.Second))
		}
		if r, err := p.run(ctx, p.b.window/4); err != nil {
			return err
		} else {
			p.young += int64(r.Did)
		}
	}
	_, err := p.db.ExecContext(ctx, oldMarksSQL, p.filled)
	return err
}

// insert measures the rate of inserts.
func (p *purgeWorld) insert(ctx context.Context) (compare.Sample, error) {
	r, err := p.run(ctx, 4*p.b.window)
	p.young += int64(r.Did)
	return compare.Sample{perSecond: r.Rate}, err
}

// insertAndPurge measures the rate of inserts while a purge is at work, and its own rate.
func (p *purgeWorld) insertAndPurge(ctx context.Context) (compare.Sample, error) {
	// The server would do so by itself, but not at a time that we know.
	if _, err := p.db.ExecContext(ctx, `VACUUM inbox`); err != nil {
		return nil, err
	}
	if err := p.fill(ctx); err != nil {
		return nil, err
	}
	purging, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	start := time.Now()
	go func() {
		ended <- p.box.Purge(purging, inbox.PurgeConfig{Retention: 2 * time.Hour, TopicRetention: 7 * 24 * time.Hour, Marks: true, Every: 10 * time.Millisecond})
	}()
	r, err := p.run(ctx, 4*p.b.window)
	stop()
	err = errors.Join(err, <-ended)
	took := time.Since(start)
	if err != nil {
		return nil, err
	}
	p.young += int64(r.Did)
	var counts struct{ Old, Young int64 }
	if err := p.db.GetContext(ctx, &counts, `SELECT old, (SELECT count(*) FROM inbox) - old AS young FROM (`+countOldSQL+`) AS o(old)`); err != nil {
		return nil, err
	}
	if counts.Young != p.young {
		return nil, fmt.Errorf("%d messages were applied, and %d young rows are there", p.young, counts.Young)
	}
	removed := int64(p.rows) - counts.Old
	p.removed += removed
	if counts.Old == 0 {
		return nil, fmt.Errorf("the purge has removed all of %d old rows, the table is too small to measure it", p.rows)
	}
	return compare.Sample{perSecond: r.Rate, removedPerSecond: float64(removed) / took.Seconds()}, nil
}

// run lets callers apply messages of which nothing is kept but their row.
func (p *purgeWorld) run(ctx context.Context, window time.Duration) (drive.Result, error) {
	p.turns++
	prefix := strconv.Itoa(p.turns) + "-"
	return drive.Run(ctx, 8, window, func(ctx context.Context, caller, turn int) (int, error) {
		ms := make([]inbox.Message, inbox.MaxBatch)
		for i := range ms {
			ms[i] = inbox.Message{
				ID:       prefix + strconv.Itoa(caller) + "-" + strconv.Itoa(turn) + "-" + strconv.Itoa(i),
				Position: &inbox.Position{Topic: [16]byte{byte(p.turns), byte(p.turns >> 8), 1}, Partition: int32(caller), Offset: int64(turn*len(ms) + i)},
			}
		}
		for _, r := range p.box.ApplySet(ctx, ms, func(context.Context, *sqlx.Tx, []int) []error { return nil }) {
			if r.Outcome != inbox.Applied {
				return 0, fmt.Errorf("a message that is new is %v: %w", r.Outcome, r.Err)
			}
		}
		return len(ms), nil
	})
}

func nothing(context.Context, *sqlx.Tx) error { return nil }
