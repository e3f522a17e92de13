package inbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jmoiron/sqlx"

	"github.com/onceward/onceward/internal/devstack/devtest"
)

// A thousand answers to COMMIT are lost, of transactions that were committed and of some
// that were not. Claiming again tells them apart, each time.
func TestUnknownCommit_AThousandTimes(t *testing.T) {
	const cuts, workers = 1000, 8
	address := devtest.PostgresURL(t)
	db := migrate(t, openURL(t, address))
	p, far := newProxy(t, address, "COMMIT")
	near := newBox(t, db, Config{})
	wantOutcome(t, near.Apply(t.Context(), Message{ID: "z"}, func(context.Context, *sqlx.Tx) error { return nil }), Applied) // so that the scope is known

	var cut, next, early, late atomic.Int64
	p.choose = func() fault {
		if cut.Add(1) > cuts {
			return none
		}
		return []fault{cutBefore, cutAfter, cutRace}[rand.IntN(3)]
	}
	b := newBox(t, far, Config{})
	b.scope.Store(near.scope.Load())
	work := func() {
		for cut.Load() < cuts {
			m := Message{ID: fmt.Sprint("m", next.Add(1))}
			lost, runs := 0, 0
			for done := false; !done; {
				res := b.Apply(context.Background(), m, func(ctx context.Context, tx *sqlx.Tx) error {
					runs++
					return effect(m.ID)(ctx, tx)
				})
				switch {
				case res.Outcome == Again && errors.Is(res.Err, ErrUnknown):
					lost++
				case res.Outcome == Duplicate && lost == runs: // the last of them was committed
					late.Add(1)
					early.Add(int64(lost - 1))
					done = true
				case res.Outcome == Applied && lost == runs-1: // none was
					early.Add(int64(lost))
					done = true
				default:
					t.Errorf("message %s: %v (%v), after %d lost answers and %d runs of its handler", m.ID, res.Outcome, res.Err, lost, runs)
					done = true
				}
			}
		}
	}
	var wg sync.WaitGroup
	for range workers {
		wg.Go(work)
	}
	wg.Wait()
	if early.Load() == 0 || late.Load() == 0 {
		t.Errorf("%d transactions were committed when their answer was lost, and %d were not: want some of both", late.Load(), early.Load())
	}
	var effects, ids int64
	must(t, db.QueryRow("SELECT count(*), count(DISTINCT id) FROM effect").Scan(&effects, &ids))
	if effects != next.Load() || ids != effects {
		t.Errorf("%d effects of %d messages, want one of each of %d", effects, ids, next.Load())
	}
	if lost := early.Load() + late.Load(); lost != cuts {
		t.Errorf("%d answers were lost, want %d", lost, cuts)
	}
	t.Logf("%d messages; %d of their transactions were committed when the answer was lost, %d were not", next.Load(), late.Load(), early.Load())
}
