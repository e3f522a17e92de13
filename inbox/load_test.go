package inbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
)

// A load is workers that apply overlapping batches: the same IDs and resources at once, in
// any order, with stale tokens, failing handlers and holders that give up.
type load struct {
	db      *sqlx.DB
	b       *Inbox
	grants  atomic.Int64
	handled atomic.Int64

	mu       sync.Mutex
	outcomes map[Outcome]int // guarded by mu
	codes    map[string]int  // SQLSTATE of errors that are Again; guarded by mu
}

func newLoad(t *testing.T) *load {
	db := newDB(t, "deadlock_timeout=20ms")
	db.MustExec(`CREATE TABLE history (seq bigserial, id text, resource text, token bigint)`)
	return &load{db: db, b: newBox(t, db, Config{LockTimeout: time.Minute}), outcomes: map[Outcome]int{}, codes: map[string]int{}}
}

func (l *load) batch(rng *rand.Rand, window int) {
	const resources = 60
	rs, is := rng.Perm(resources), rng.Perm(80)
	ms := make([]Message, 1+rng.IntN(40))
	for i := range ms {
		token := l.grants.Add(1)
		if rng.IntN(10) == 0 {
			token -= int64(rng.IntN(200)) // an old holder wakes up
		}
		// The resource does not follow from the ID, or they would meet in order.
		ms[i] = Message{ID: fmt.Sprintf("id-%d", window+is[i]), Fences: []Fence{{fmt.Sprintf("r-%d", rs[i]), max(token, 1)}}}
		if rng.IntN(20) == 0 {
			ms[i].Fences = nil
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	quitAt := -1
	if rng.IntN(3) == 0 { // most do not get there: that message is a duplicate
		quitAt = rng.IntN(len(ms))
	}
	results := l.b.ApplyBatch(ctx, ms, func(ctx context.Context, tx *sqlx.Tx, i int) error {
		l.handled.Add(1)
		if i == quitAt {
			cancel()
		}
		resource, token := "", int64(0)
		if len(ms[i].Fences) > 0 {
			resource, token = ms[i].Fences[0].Resource, ms[i].Fences[0].Token
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO history (id, resource, token) VALUES ($1, $2, $3)", ms[i].ID, resource, token); err != nil {
			return err
		}
		switch (len(ms[i].ID) + i + len(ms)) % 25 {
		case 0:
			return errBoom
		case 1:
			return breaks(ctx, tx)
		case 2:
			return hides(ctx, tx)
		}
		return nil
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range results {
		l.outcomes[r.Outcome]++
		if r.Outcome == Again && !errors.Is(r.Err, context.Canceled) {
			l.codes[state(r.Err)]++
		}
	}
}

func (l *load) run(workers, batches int) {
	var wg sync.WaitGroup
	var window atomic.Int64
	for w := range workers {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 7))
			for range batches {
				l.batch(rng, int(window.Add(5)))
			}
		})
	}
	wg.Wait()
}

func TestLoad_OverlappingBatches(t *testing.T) {
	overlapping(t, newLoad(t))
}

// To count failures changes nothing of this, and who is given up is so once.
func TestLoad_CountingFailures(t *testing.T) {
	l := newLoad(t)
	hook, written := letters(t, l.db)
	l.b = newBox(t, l.db, Config{LockTimeout: time.Minute, MaxAttempts: 2, DeadLetter: hook})
	overlapping(t, l)
	if n := len(written()); n == 0 || n != l.outcomes[Dead] {
		t.Errorf("%d dead letters of %d dead, want as many, and some", n, l.outcomes[Dead])
	}
}

func overlapping(t *testing.T, l *load) {
	t.Helper()
	l.run(8, 25)
	if l.codes["40P01"] > 0 || l.codes["40001"] > 0 {
		t.Errorf("errors of collisions = %v, want none", l.codes)
	}
	for _, o := range []Outcome{Applied, Duplicate, Stale, Failed, Again} {
		if l.outcomes[o] == 0 {
			t.Errorf("nothing was %v: the load is too light", o)
		}
	}
	var bad []string
	must(t, l.db.Select(&bad, "SELECT id FROM history GROUP BY id HAVING count(*) > 1"))
	if len(bad) > 0 {
		t.Errorf("applied twice: %q", bad)
	}
	must(t, l.db.Select(&bad, `SELECT resource FROM (SELECT resource, token < lag(token) OVER (PARTITION BY resource ORDER BY seq) AS back
		FROM history WHERE resource <> '') x WHERE back`))
	if len(bad) > 0 {
		t.Errorf("effects under a fence that went back: %q", bad)
	}
	var rows, history int
	must(t, l.db.Get(&rows, "SELECT count(*) FROM inbox WHERE NOT dead"))
	must(t, l.db.Get(&history, "SELECT count(*) FROM history"))
	if rows != l.outcomes[Applied] || history != rows {
		t.Errorf("%d applied, %d rows, %d effects, want the same", l.outcomes[Applied], rows, history)
	}
}

// The load is hard enough to find a claim that takes its locks in no order.
func TestLoad_UnsortedDeadlocks(t *testing.T) {
	l := newLoad(t)
	l.b.sql.claim = strings.NewReplacer("ORDER BY t.resource", "ORDER BY random()", "ORDER BY key", "ORDER BY random()").Replace(l.b.sql.claim)
	l.run(8, 25)
	if l.codes["40P01"] == 0 {
		t.Errorf("errors = %v, want deadlocks", l.codes)
	}
}

// The purge removes rows and fences under the load, and neither it nor a claim is ever in
// a deadlock. Rows are made old, so that there is something to remove.
func TestLoad_WithPurge(t *testing.T) {
	l := newLoad(t)
	l.db.MustExec("ALTER TABLE inbox ALTER created_at SET DEFAULT now() - random() * interval '2 days'")
	_, err := l.b.scopeID(t.Context())
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- l.b.Purge(ctx, PurgeConfig{Retention: day, TopicRetention: day, Every: time.Millisecond, RoundTime: time.Millisecond})
	}()
	l.run(8, 15)
	cancel()
	must(t, <-done)
	if l.codes["40P01"] > 0 || l.codes["40001"] > 0 {
		t.Errorf("errors of collisions = %v, want none", l.codes)
	}
	var rows int
	must(t, l.db.Get(&rows, "SELECT count(*) FROM inbox"))
	if applied := l.outcomes[Applied]; rows == 0 || rows >= applied {
		t.Errorf("%d rows are left of %d applied, want some removed and some kept", rows, applied)
	}
}
