package inbox

import (
	"context"
	"errors"
	"testing"

	"github.com/jmoiron/sqlx"

	"github.com/onceward/onceward/internal/devstack/devtest"
)

// preparedClaims returns how often the claim of one message is prepared on the connection of a handler.
func preparedClaims(ctx context.Context, tx *sqlx.Tx) (n int, err error) {
	err = tx.GetContext(ctx, &n, `SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%SELECT CASE WHEN s.marked%' AND statement NOT LIKE '%pg_prepared_statements%'`)
	return n, err
}

func TestPrepare_OncePerConnection(t *testing.T) {
	for _, prepare := range []bool{false, true} {
		db := migrate(t, openWith(t, "postgres", devtest.PostgresURL(t)))
		db.SetMaxOpenConns(1) // also: to prepare needs no second connection beside that of a transaction
		b := newBox(t, db, Config{Prepare: prepare})
		want := 0
		if prepare {
			want = 1
		}
		for _, id := range []string{"a", "b", "c"} {
			n := -1
			res := b.Apply(t.Context(), Message{ID: id, Fences: []Fence{{"r", 1}}}, func(ctx context.Context, tx *sqlx.Tx) (err error) {
				n, err = preparedClaims(ctx, tx)
				return err
			})
			wantOutcome(t, res, Applied)
			if n != want {
				t.Errorf("Prepare %v: %d claims are prepared, want %d", prepare, n, want)
			}
		}
	}
}

// Each connection prepares the claim when it first runs it, and what was prepared on one
// that is gone is not missed.
func TestPrepare_Outcomes(t *testing.T) {
	drivers(t, func(t *testing.T, db *sqlx.DB) {
		b := newBox(t, db, Config{Prepare: true})
		must(t, b.prepare(t.Context()))
		m := Message{ID: "a", Digest: []byte("v1"), Fences: []Fence{{"r", 5}}}
		other := Message{ID: "b", Fences: []Fence{{"s", 1}}}
		r := claims(t, b, other) // so that the pool has more than one
		wantOutcome(t, b.Apply(t.Context(), m, effect("a")), Applied)
		r.ends(t, errBoom)
		for range 7 { // past the fifth time, the server keeps one plan for all
			wantOutcome(t, b.Apply(t.Context(), m, effect("again")), Duplicate)
		}
		m.Digest = []byte("v2")
		wantOutcome(t, b.Apply(t.Context(), m, effect("again")), Conflict)
		wantOutcome(t, b.Apply(t.Context(), Message{ID: "c", Fences: []Fence{{"r", 4}}}, effect("c")), Stale)
		wantOutcomes(t, b.ApplyBatch(t.Context(), []Message{m, {ID: "d"}, {ID: "e", Fences: []Fence{{"t", 6}}}},
			func(ctx context.Context, tx *sqlx.Tx, i int) error {
				return effect([]string{"a", "d", "e"}[i])(ctx, tx)
			}),
			Conflict, Applied, Applied)

		_, _ = db.Exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = current_setting('application_name') AND pid <> pg_backend_pid()`)
		wantOutcome(t, b.Apply(t.Context(), other, effect("b")), Applied)
		wantEffects(t, db, "a", "b", "d", "e")
	})
}

func TestPrepare_WhatCannotBePrepared(t *testing.T) {
	db := openWith(t, "postgres", devtest.PostgresURL(t)) // no tables
	b := newBox(t, db, Config{Prepare: true})
	b.scope.Store(1)
	res := b.Apply(t.Context(), Message{ID: "a"}, effect("a"))
	wantOutcome(t, res, Again)
	if state(res.Err) != "42P01" {
		t.Errorf("error = %v, want that of the missing table", res.Err)
	}

	migrate(t, db) // the next one finds it
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if res := b.Apply(ctx, Message{ID: "a"}, effect("a")); !errors.Is(res.Err, context.Canceled) {
		t.Errorf("error = %v, want %v", res.Err, context.Canceled)
	}
	b.scope.Store(0)
	wantOutcome(t, b.Apply(t.Context(), Message{ID: "a"}, effect("a")), Applied)
	if b.prepared.Load() == nil {
		t.Error("nothing is prepared")
	}
}

// Of several that come first at once, one prepares for all.
func TestPrepare_FirstAtOnce(t *testing.T) {
	db := newDB(t)
	b := newBox(t, db, Config{Prepare: true})
	done := make(chan error)
	for range 8 {
		go func() { done <- b.prepare(t.Context()) }()
	}
	for range 8 {
		must(t, <-done)
	}
	n := -1
	wantOutcome(t, b.Apply(t.Context(), Message{ID: "a"}, func(ctx context.Context, tx *sqlx.Tx) (err error) {
		n, err = preparedClaims(ctx, tx)
		return err
	}), Applied)
	if n != 1 {
		t.Errorf("%d claims are prepared on one connection, want 1", n)
	}
}
