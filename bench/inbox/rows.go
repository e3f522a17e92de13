package main

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/onceward/onceward/bench/internal/compare"
	"github.com/onceward/onceward/inbox"
)

// fewRows is how many rows the small table has.
const fewRows = 10_000

// rows compares the claim in a large table with the claim in a small one. A tenth as
// many locks have been claimed with, and the claims are of these.
//
// The first change of a page after a checkpoint writes the whole page to the log. In a
// small table that is soon over, in a large one it goes on for as many messages as the
// index has pages, here some 70,000. The targets are of the time after that; what it
// costs until then is noted.
func rows(ctx context.Context, b *bench) error {
	const few, many = "few rows", "many rows"
	small, err := b.newWorld(ctx, libPQ, 1, inbox.Config{})
	if err != nil {
		return err
	}
	defer small.db.Close()
	large, err := b.newWorld(ctx, libPQ, 1, inbox.Config{})
	if err != nil {
		return err
	}
	defer large.db.Close()
	for _, w := range []*world{small, large} { // the row of the scope
		if r := w.box.Apply(ctx, inbox.Message{ID: "first"}, func(context.Context, *sqlx.Tx) error { return nil }); r.Err != nil {
			return r.Err
		}
	}
	if err := large.fill(ctx, b, b.rows); err != nil { // its last step has changed every page
		return err
	}
	var bytes float64
	if err := large.db.GetContext(ctx, &bytes, `SELECT pg_total_relation_size('inbox')::float8 / (SELECT count(*) FROM inbox)`); err != nil {
		return err
	}
	b.Note("%d rows, %.0f bytes each, indexes included", b.rows, bytes)

	cases := []compare.Case{
		{Name: few, Run: func(ctx context.Context) (compare.Sample, error) {
			if _, err := small.db.ExecContext(ctx, `TRUNCATE inbox, inbox_fence`); err != nil { // what the last round has added
				return nil, err
			}
			if err := small.fill(ctx, b, fewRows); err != nil {
				return nil, err
			}
			return small.timeClaims(ctx, b, fewRows)
		}},
		{Name: many, Run: func(ctx context.Context) (compare.Sample, error) { return large.timeClaims(ctx, b, b.rows) }},
	}
	res, err := compare.Rounds(ctx, b.rounds, cases)
	if err != nil {
		return err
	}
	b.Table("rows", res, oneUS, batchUS)
	b.AtMost("inbox/rows/claim-of-1/of-few-rows", res.Ratio(oneUS, many, few), 1.2)
	b.AtMost("inbox/rows/claim-of-64/of-few-rows", res.Ratio(batchUS, many, few), 1.2)

	if err := b.checkpoint(ctx); err != nil {
		return err
	}
	res, err = compare.Rounds(ctx, max(1, b.rounds/3), cases)
	if err != nil {
		return err
	}
	b.Note("just after a checkpoint: %.2f of one, %.2f of 64",
		res.Ratio(oneUS, many, few).Median(), res.Ratio(batchUS, many, few).Median())
	return nil
}

// Metrics of the claim.
const (
	oneUS   = "claim us" // until the handler runs, BEGIN included
	batchUS = "claim of 64 us"
)

// fillSQL adds rows as messages have left them. Keys are hashes, and so come in no order;
// within a statement they are sorted, as those of a batch are.
const (
	fillSQL = `
INSERT INTO inbox (key, scope, id, fingerprint, topic, part, off)
SELECT key, 1, 'order-' || left(translate(key::text, '-', ''), 26), md5('f' || g)::uuid, md5('topic')::uuid, g % 12, g / 12
FROM (SELECT g, md5('row' || g)::uuid AS key FROM generate_series($1::bigint, $2::bigint) AS g) AS r
ORDER BY key`
	// The resource is made as package inbox makes it. If it did not, claims would add
	// fences, which is looked at.
	fillFencesSQL = `
INSERT INTO inbox_fence (resource, token)
SELECT resource, 1 FROM (
  SELECT encode(substr(sha256(int8send(length(kind)) || kind || int8send(length(name)) || name), 1, 16), 'hex')::uuid AS resource
  FROM (SELECT 'onceward inbox resource'::bytea AS kind, ('order:' || g)::bytea AS name FROM generate_series($1::bigint, $2::bigint) AS g) AS n
) AS r ORDER BY resource`
)

// fencesOf is how many locks have been claimed with in a table with so many rows.
func fencesOf(rows int) int { return rows / 10 }

// fill adds rows to an inbox, and the fences that go with them.
func (w *world) fill(ctx context.Context, b *bench, rows int) error {
	const step = 250_000
	start := time.Now()
	for first := 0; first < rows; first += step {
		if first > 0 && first+step >= rows {
			if err := b.checkpoint(ctx); err != nil {
				return err
			}
		}
		if _, err := w.db.ExecContext(ctx, fillSQL, first, min(first+step, rows)-1); err != nil {
			return err
		}
		if _, err := w.db.ExecContext(ctx, fillFencesSQL, fencesOf(first), fencesOf(min(first+step, rows))-1); err != nil {
			return err
		}
		if rows > step {
			fmt.Fprintf(b.progress, "inbox: %d of %d rows, %v\n", min(first+step, rows), rows, time.Since(start).Round(time.Second))
		}
	}
	return nil
}

// timeClaims measures the claim of fresh messages, with locks out of those that the
// table knows.
func (w *world) timeClaims(ctx context.Context, b *bench, rows int) (compare.Sample, error) {
	claim := func(many int) (time.Duration, error) {
		ms := feed(0, 1, 0, many, 0)
		claims := make([]inbox.Message, many)
		for i, order := range distinct(many, fencesOf(rows)) {
			ms[i].order = order
			claims[i] = ms[i].claim(time.Now().UnixMicro())
		}
		var took time.Duration
		start := time.Now()
		for _, r := range w.box.ApplySet(ctx, claims, func(context.Context, *sqlx.Tx, []int) []error {
			took = time.Since(start)
			return nil
		}) {
			if r.Outcome != inbox.Applied {
				return 0, fmt.Errorf("a fresh message is %v: %w", r.Outcome, r.Err)
			}
		}
		return took, nil
	}
	var before, after int
	const count = `SELECT count(*) FROM inbox_fence`
	if err := w.db.GetContext(ctx, &before, count); err != nil {
		return nil, err
	}
	s := compare.Sample{}
	for metric, many := range map[string]int{oneUS: 1, batchUS: inbox.MaxBatch} {
		var vs compare.Values
		for range b.claims {
			took, err := claim(many)
			if err != nil {
				return nil, err
			}
			vs = append(vs, float64(took.Nanoseconds())/1e3)
		}
		s[metric] = vs.Median()
	}
	if err := w.db.GetContext(ctx, &after, count); err != nil {
		return nil, err
	}
	if after != before {
		return nil, fmt.Errorf("claims of known locks have added %d fences", after-before)
	}
	return s, nil
}

// distinct returns n different numbers below limit.
func distinct(n, limit int) []int64 {
	seen := map[int64]bool{}
	for len(seen) < n {
		seen[rand.Int64N(int64(limit))] = true
	}
	return slices.Collect(maps.Keys(seen))
}
