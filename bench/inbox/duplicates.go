package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jmoiron/sqlx"
	"github.com/onceward/onceward/bench/internal/compare"
	"github.com/onceward/onceward/inbox"
)

// duplicates measures how much is written to the log of the server because messages
// come again, each with the fence of a newer grant.
func duplicates(ctx context.Context, b *bench) error {
	w, err := b.newWorld(ctx, libPQ, 1, inbox.Config{})
	if err != nil {
		return err
	}
	defer w.db.Close()
	ms := make([]message, 0, b.duplicates)
	for turn := range b.duplicates / inbox.MaxBatch {
		ms = append(ms, feed(0, 1, turn, inbox.MaxBatch, 0)...)
	}
	token := int64(0)
	deliver := func(many int, want inbox.Outcome) error {
		for first := 0; first < len(ms); first += many {
			claims := make([]inbox.Message, many)
			for i := range claims {
				token++
				claims[i] = ms[first+i].claim(token)
			}
			for i, r := range w.box.ApplyBatch(ctx, claims, func(ctx context.Context, tx *sqlx.Tx, i int) error {
				return apply(ctx, tx, ms[first+i].id, ms[first+i].order)
			}) {
				if r.Outcome != want {
					return fmt.Errorf("message %s is %v, want %v: %w", claims[i].ID, r.Outcome, want, errors.Join(r.Err))
				}
			}
		}
		return nil
	}
	if err := deliver(inbox.MaxBatch, inbox.Applied); err != nil {
		return err
	}
	for _, f := range []struct {
		name string
		many int
	}{{"single", 1}, {"batch-64", inbox.MaxBatch}} {
		bytes, err := w.walOf(ctx, func() error { return deliver(f.many, inbox.Duplicate) })
		if err != nil {
			return err
		}
		b.AtMost("inbox/duplicates/"+f.name+"/wal-bytes", compare.Exactly(bytes/float64(len(ms))), 150)
	}
	return w.check(ctx, int64(len(ms)), "inbox") // nothing was done twice
}

// walOf returns how much the server writes to its log while f runs.
func (w *world) walOf(ctx context.Context, f func() error) (bytes float64, err error) {
	var before string
	if err := w.db.GetContext(ctx, &before, `SELECT pg_current_wal_insert_lsn()::text`); err != nil {
		return 0, err
	}
	if err := f(); err != nil {
		return 0, err
	}
	err = w.db.GetContext(ctx, &bytes, `SELECT (pg_current_wal_insert_lsn() - $1::pg_lsn)::float8`, before)
	return bytes, err
}
