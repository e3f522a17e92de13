package inbox

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
)

// ago is the token of a grant of so long ago, by the clock of the database.
func ago(t testing.TB, db *sqlx.DB, d time.Duration) int64 {
	t.Helper()
	var now int64
	must(t, db.Get(&now, nowSQL))
	return now - d.Microseconds()
}

func under(id, resource string, token int64) Message {
	return Message{ID: id, Fences: []Fence{{resource, token}}}
}

// newFenceWalk is [newRowWalk] for fences.
func newFenceWalk(t *testing.T, db *sqlx.DB, retention time.Duration) *walk {
	t.Helper()
	w := newBox(t, db, Config{FenceRetention: retention}).fenceWalk(keepADay.withDefaults())
	w.pages, w.roundTime, w.every = leastPages, 0, 0
	return w
}

func TestFence_TooOldIsStale(t *testing.T) {
	drivers(t, func(t *testing.T, db *sqlx.DB) {
		b := newBox(t, db, Config{}) // FenceRetention is 7 days
		res := b.Apply(t.Context(), under("a", "x", ago(t, db, 85*time.Hour)), effect("a"))
		wantOutcome(t, res, Stale)
		e := as[*StaleError](t, res.Err)
		if late := ago(t, db, 0) - e.Stored; late < 0 || late > time.Minute.Microseconds() || e.Resource != "x" || !e.Uncharged() || !strings.Contains(e.Error(), "too old, the time is") {
			t.Errorf("error = %v (Stored is %dus ago), want the time of the database in it", e, late)
		}
		wantRows(t, db, 0)
		// What the error asks for is good.
		wantOutcome(t, b.Apply(t.Context(), under("a", "x", e.Stored+1), effect("a")), Applied)
		// It is refused by age also where a token is stored, its own or another, and among others.
		db.MustExec("UPDATE inbox_fence SET token = $1", ago(t, db, 85*time.Hour))
		ms := []Message{
			under("b", "x", ago(t, db, 84*time.Hour+time.Minute)), under("c", "y", ago(t, db, 83*time.Hour)), under("a", "z", ago(t, db, 90*time.Hour)),
			{ID: "d"},
			{ID: "e", Fences: []Fence{{"v", 3}, {"w", ago(t, db, 90*time.Hour)}}},
		}
		wantOutcomes(t, b.ApplyBatch(t.Context(), ms, func(ctx context.Context, tx *sqlx.Tx, i int) error { return effect(ms[i].ID)(ctx, tx) }),
			Stale, Applied, Duplicate, Applied, Stale)
		wantEffects(t, db, "a", "c", "d")
	})
}

// Numbers that are no times have no age.
func TestFence_OtherNumbersAreNotTooOld(t *testing.T) {
	db := newDB(t)
	w := newFenceWalk(t, db, time.Hour)
	tokens := []int64{1, firstTime - 1, time.Now().UnixNano(), ago(t, db, -30*day)}
	for i, token := range tokens {
		wantOutcome(t, w.b.Apply(t.Context(), under(fmt.Sprint(i), fmt.Sprint(i), token), effect("")), Applied)
	}
	must(t, w.walk(t.Context()))
	wantFences(t, db, tokens...)
	wantOutcome(t, w.b.Apply(t.Context(), under("late", "1", 7), effect("")), Stale)
}

func TestFence_KeepForever(t *testing.T) {
	db := newDB(t)
	b := newBox(t, db, Config{FenceRetention: KeepForever})
	wantOutcome(t, b.Apply(t.Context(), under("a", "x", firstTime), effect("a")), Applied)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- b.Purge(ctx, PurgeConfig{Retention: day, TopicRetention: day, Every: time.Millisecond})
	}()
	for walked := 0; walked == 0; { // it walks through the rows first
		must(t, db.Get(&walked, "SELECT count(*) FROM inbox_purge WHERE began > '-infinity'"))
	}
	cancel()
	must(t, <-ended)
	wantFences(t, db, firstTime)
}

func wantFences(t *testing.T, db *sqlx.DB, want ...int64) {
	t.Helper()
	got := []int64{}
	must(t, db.Select(&got, "SELECT token FROM inbox_fence ORDER BY token"))
	if slices.Sort(want); !slices.Equal(got, want) {
		t.Errorf("tokens = %v, want %v", got, want)
	}
}

func TestPurge_RemovesOldFences(t *testing.T) {
	db := newDB(t)
	w := newFenceWalk(t, db, 2*day)
	put := func(name string, token int64, parked bool) {
		db.MustExec("INSERT INTO inbox_fence (resource, token, parked) VALUES ($1::uuid, $2, $3)", hash("test", name).text(), token, parked)
	}
	for i := range 2000 {
		put(fmt.Sprint("old", i), firstTime+int64(i), false)
	}
	young, parked := ago(t, db, 2*day-time.Hour), ago(t, db, 30*day)
	put("young", young, false)
	put("parked", parked, true)
	must(t, w.walk(t.Context()))
	wantFences(t, db, young, parked)
}

// The purge is in the middle of removing a fence while a new holder claims it, and an old
// one wakes up.
func TestPurge_OfAFenceAgainstItsClaim(t *testing.T) {
	db := newDB(t)
	w := newFenceWalk(t, db, day)
	past := ago(t, db, 2*day)
	db.MustExec("INSERT INTO inbox_fence (resource, token) VALUES ($1::uuid, $2)", hash("onceward inbox resource", "x").text(), past)
	purge := db.MustBegin()
	defer purge.Rollback()
	purge.MustExec(w.remove, page(0), page(mostPages), microseconds(day))
	claimed := make(chan Result, 1)
	now := ago(t, db, 0)
	go func() { claimed <- w.b.Apply(context.Background(), under("new", "x", now), effect("new")) }()
	awaitBlocked(t, db, 1)
	must(t, purge.Commit())
	wantOutcome(t, <-claimed, Applied)
	wantFences(t, db, now)
	wantOutcome(t, w.b.Apply(t.Context(), under("old", "x", past), effect("old")), Stale)

	// A claim is at work when the purge comes by: it is not waited for, and its fence stays.
	db.MustExec("UPDATE inbox_fence SET token = $1", past)
	r := claims(t, w.b, under("newer", "x", now+1))
	must(t, w.walk(t.Context()))
	r.ends(t, nil)
	must(t, w.walk(t.Context()))
	wantFences(t, db, now+1)

	// And when the row is gone, the old one is refused all the same.
	db.MustExec("DELETE FROM inbox_fence")
	wantOutcome(t, w.b.Apply(t.Context(), under("old", "x", past), effect("old")), Stale)
	wantEffects(t, db, "new", "rival")
}

// New holders claim, old ones wake up, and the purge goes round and round.
func TestPurge_OfFencesUnderLoad(t *testing.T) {
	db := newDB(t, "deadlock_timeout=20ms")
	w := newFenceWalk(t, db, day)
	const resources = 40
	past := ago(t, db, 2*day)
	for i := range resources {
		db.MustExec("INSERT INTO inbox_fence (resource, token) VALUES ($1::uuid, $2)", hash("onceward inbox resource", fmt.Sprint(i)).text(), past)
	}
	ctx, cancel := context.WithCancel(t.Context())
	walking := make(chan int, 1)
	go func() {
		walks := 0
		for ; ctx.Err() == nil; walks++ {
			if err := w.walk(ctx); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		}
		walking <- walks
	}()
	newest := ago(t, db, 0)
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			for i := range resources {
				name := fmt.Sprint((i*7 + worker*10) % resources)
				id := fmt.Sprintf("%s by %d", name, worker)
				if r := w.b.Apply(context.Background(), under("late "+id, name, past+int64(worker)), effect("late")); r.Outcome != Stale {
					t.Errorf("old holder: %+v, want stale", r)
				}
				for token := newest + int64(worker); ; token += resources { // until it is the newest
					r := w.b.Apply(context.Background(), under(id, name, token), effect(id))
					if r.Outcome == Applied {
						break
					}
					if r.Outcome != Stale {
						t.Errorf("new holder: %+v", r)
						break
					}
				}
			}
		})
	}
	wg.Wait()
	cancel()
	if walks := <-walking; walks < 2 {
		t.Errorf("%d walks, the test wants more", walks)
	}
	if got := effects(t, db); len(got) != 4*resources || slices.Contains(got, "late") {
		t.Errorf("%d effects, want %d and none that is late", len(got), 4*resources)
	}
	var n int
	must(t, db.Get(&n, "SELECT count(*) FROM inbox_fence WHERE token >= $1", newest))
	if n != resources {
		t.Errorf("%d fences are of new holders, want %d", n, resources)
	}
}
