package inbox

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
)

var topicA = [16]byte{0xa}

// records returns the messages of the offsets from and up to but not including upto of
// partition 0 of a topic.
func records(topic [16]byte, from, upto int64) []Message {
	var ms []Message
	for off := from; off < upto; off++ {
		ms = append(ms, Message{ID: fmt.Sprintf("%x-%d", topic[0], off), Position: &Position{topic, 0, off}})
	}
	return ms
}

// runs returns the offsets of the messages whose handler runs. The others must be
// duplicates.
func runs(t *testing.T, b *Inbox, ms []Message) []int64 {
	t.Helper()
	offs := []int64{}
	for i, r := range b.ApplyBatch(t.Context(), ms, func(context.Context, *sqlx.Tx, int) error { return nil }) {
		if r.Outcome == Applied {
			offs = append(offs, ms[i].Position.Offset)
		} else {
			wantOutcome(t, r, Duplicate)
		}
	}
	return offs
}

func wantRuns(t *testing.T, b *Inbox, ms []Message, want ...int64) {
	t.Helper()
	if got := runs(t, b, ms); !slices.Equal(got, want) {
		t.Errorf("handler ran for the offsets %v, want %v", got, want)
	}
}

func mark(t *testing.T, b *Inbox, topic [16]byte, bounds ...int64) {
	t.Helper()
	var rs []Run
	for pair := range slices.Chunk(bounds, 2) {
		rs = append(rs, Run{topic, 0, pair[0], pair[1]})
	}
	must(t, b.Mark(t.Context(), rs))
}

// pass makes what is stored as much older.
func pass(t *testing.T, db *sqlx.DB, d time.Duration) {
	t.Helper()
	db.MustExec("UPDATE inbox SET created_at = created_at - $1::bigint * interval '1 millisecond'", d.Milliseconds())
	db.MustExec("UPDATE inbox_mark SET at = at - $1::bigint * interval '1 millisecond'", d.Milliseconds())
}

// offsets returns those of the rows that are left.
func offsets(t *testing.T, db *sqlx.DB) []int64 {
	t.Helper()
	offs := []int64{}
	must(t, db.Select(&offs, "SELECT off FROM inbox ORDER BY off"))
	return offs
}

func wantOffsets(t *testing.T, db *sqlx.DB, want ...int64) {
	t.Helper()
	if got := offsets(t, db); !slices.Equal(got, want) {
		t.Errorf("rows of the offsets %v are left, want %v", got, want)
	}
}

var withMarks = PurgeConfig{Retention: 2 * time.Hour, TopicRetention: 7 * day, Marks: true}

// purgeMarked lets as much time pass as it takes until the rows of marked offsets go.
func purgeMarked(t *testing.T, db *sqlx.DB, w *walk) {
	t.Helper()
	for range 2 {
		pass(t, db, withMarks.Retention/2+time.Minute)
		must(t, w.walk(t.Context()))
	}
}

// Whoever delivers them, from the beginning, also one who was paused all the time.
func TestMark_WhatIsPurgedStaysDuplicate(t *testing.T) {
	drivers(t, func(t *testing.T, db *sqlx.DB) {
		w, _ := newRowWalk(t, db, withMarks)
		ms := records(topicA, 0, 150)
		paused := newBox(t, db, Config{})
		wantRuns(t, paused, ms[:1], 0)
		if got := runs(t, w.b, ms); len(got) != 149 {
			t.Fatalf("%d ran, want all but the first", len(got))
		}
		mark(t, w.b, topicA, 0, 100)
		mark(t, w.b, topicA, 100, 149)
		purgeMarked(t, db, w)
		wantOffsets(t, db, 149)
		wantRuns(t, w.b, ms)
		wantRuns(t, paused, ms)
		wantRuns(t, w.b, records(topicA, 149, 152), 150, 151)
	})
}

// An offset is no proof that the ID is the same, as long as there is a row.
func TestMark_ConflictAndAnswerOfTheRowComeFirst(t *testing.T) {
	db := newDB(t)
	b := newBox(t, db, Config{})
	m := records(topicA, 3, 4)[0]
	m.Digest = []byte("one")
	wantOutcome(t, b.Answer(t.Context(), m, func(context.Context, *sqlx.Tx) ([]byte, error) { return []byte("42"), nil }), Applied)
	mark(t, b, topicA, 0, 9)
	r := b.Apply(t.Context(), m, effect("again"))
	wantOutcome(t, r, Duplicate)
	if string(r.Answer) != "42" {
		t.Errorf("answer = %q, want that of the row", r.Answer)
	}
	m.Digest = []byte("two")
	wantOutcome(t, b.Apply(t.Context(), m, effect("again")), Conflict)
	m.ID = "never seen"
	wantOutcome(t, b.Apply(t.Context(), m, effect("again")), Duplicate)
	wantEffects(t, db)
}

// A marked message takes its fence all the same, as every duplicate does, and a stale one
// is still a duplicate.
func TestMark_WithFence(t *testing.T) {
	db := newDB(t)
	b := newBox(t, db, Config{})
	m := records(topicA, 3, 4)[0]
	mark(t, b, topicA, 3, 4)
	for _, token := range []int64{5, 4} {
		m.Fences = []Fence{{"x", token}}
		wantOutcome(t, b.Apply(t.Context(), m, effect("again")), Duplicate)
	}
	free := Message{ID: "free", Fences: []Fence{{"y", 1}}}
	wantOutcomes(t, b.ApplyBatch(t.Context(), []Message{m, free}, func(ctx context.Context, tx *sqlx.Tx, i int) error {
		return effect(fmt.Sprint(i))(ctx, tx)
	}), Duplicate, Applied)
	wantEffects(t, db, "1")
}

// A consumer that started at the end, offsets that were moved ahead, a crash between an
// offset commit and its mark: what lies between two runs was not decided.
func TestMark_GapsAreNotDecided(t *testing.T) {
	db := newDB(t)
	w, _ := newRowWalk(t, db, withMarks)
	ms := records(topicA, 0, 40)
	runs(t, w.b, ms)
	mark(t, w.b, topicA, 10, 15)
	mark(t, w.b, topicA, 15, 20, 30, 32)
	mark(t, w.b, topicA, 32, 35)
	purgeMarked(t, db, w)
	gaps := slices.Concat(ms[:10], ms[20:30], ms[35:])
	var left []int64
	for _, m := range gaps {
		left = append(left, m.Position.Offset)
	}
	wantOffsets(t, db, left...)
	wantRuns(t, w.b, ms)

	// A gap is kept for as long as its messages can come again. If one comes later than
	// that, it takes effect again, and so does one that was marked so long ago.
	pass(t, db, 5*day)
	must(t, w.walk(t.Context()))
	wantOffsets(t, db, left...)
	pass(t, db, 3*day)
	must(t, w.walk(t.Context()))
	wantOffsets(t, db)
	wantRuns(t, w.b, records(topicA, 8, 12), 8, 9, 10, 11)
}

// A gap whose rows are gone runs again, right beside runs that do not.
func TestMark_OutsideOfAnyRunRuns(t *testing.T) {
	db := newDB(t)
	b := newBox(t, db, Config{})
	mark(t, b, topicA, 0, 3, 5, 8)
	wantRuns(t, b, records(topicA, 0, 10), 3, 4, 8, 9)
}

// After a rewind by hand the consumer marks once more what was marked, and then goes on.
func TestMark_Rewind(t *testing.T) {
	db := newDB(t)
	b := newBox(t, db, Config{})
	mark(t, b, topicA, 0, 20)
	mark(t, b, topicA, 5, 8)
	mark(t, b, topicA, 8, 12)
	wantRuns(t, b, records(topicA, 0, 22), 20, 21)
	mark(t, b, topicA, 12, 25)
	wantRuns(t, b, records(topicA, 0, 27), 25, 26)
	var rows []string
	must(t, db.Select(&rows, "SELECT first || '-' || next FROM inbox_mark"))
	if !slices.Equal(rows, []string{"0-25"}) {
		t.Errorf("runs = %v, want one", rows)
	}
}

// A topic that is made anew has another ID, and other messages at the same offsets. Another
// partition, another consumer and a message from elsewhere have nothing to do with it
// either.
func TestMark_OfOneTopicPartitionAndConsumer(t *testing.T) {
	db := newDB(t)
	w, _ := newRowWalk(t, db, withMarks)
	other := newBox(t, db, Config{Consumer: "other"})
	ms := records(topicA, 0, 3)
	anew := records([16]byte{0xb}, 0, 3)
	elsewhere := records(topicA, 0, 3)
	for i := range elsewhere {
		elsewhere[i].ID, elsewhere[i].Position = "p"+elsewhere[i].ID, &Position{topicA, 1, int64(i)}
	}
	mark(t, w.b, topicA, 0, 3)
	wantRuns(t, w.b, ms)
	wantRuns(t, w.b, anew, 0, 1, 2)
	wantRuns(t, w.b, elsewhere, 0, 1, 2)
	wantRuns(t, other, ms, 0, 1, 2)
	wantOutcome(t, w.b.Apply(t.Context(), Message{ID: "no offset"}, effect("x")), Applied)
	purgeMarked(t, db, w)
	wantRows(t, db, 10)
}

// The purge does not touch what was marked a moment ago, since a claim may have looked
// before that, and wait. Nor dead letters.
func TestMark_Ripens(t *testing.T) {
	db := newDB(t)
	w, _ := newRowWalk(t, db, withMarks)
	runs(t, w.b, records(topicA, 0, 4))
	db.MustExec("UPDATE inbox SET dead = true WHERE off = 2")
	mark(t, w.b, topicA, 0, 1)
	pass(t, db, 3*time.Hour) // the rows are old enough
	must(t, w.walk(t.Context()))
	mark(t, w.b, topicA, 1, 3)
	for range 3 {
		must(t, w.walk(t.Context()))
	}
	wantOffsets(t, db, 0, 1, 2, 3)
	pass(t, db, time.Hour+time.Minute)
	must(t, w.walk(t.Context())) // what was seen an hour ago is ripe
	wantOffsets(t, db, 1, 2, 3)
	must(t, w.walk(t.Context()))
	wantOffsets(t, db, 1, 2, 3)
	pass(t, db, time.Hour+time.Minute)
	must(t, w.walk(t.Context()))
	wantOffsets(t, db, 2, 3)
}

// What a run has to ripen for: the claim of a paused member has read the runs, and
// waits for a fence; another member decides the message and marks it, and its row is
// old enough to go; then the claim goes on.
func TestMark_WhileAClaimWaits(t *testing.T) {
	db := newDB(t)
	w, _ := newRowWalk(t, db, withMarks)
	m := records(topicA, 0, 1)[0]
	late := m
	late.Fences = []Fence{{"x", 2}}
	r := claims(t, w.b, Message{ID: "rival", Fences: []Fence{{"x", 1}}})
	waiting := make(chan Result, 1)
	go func() { waiting <- w.b.Apply(context.Background(), late, effect("late")) }()
	awaitBlocked(t, db, 1)
	wantOutcome(t, w.b.Apply(t.Context(), m, effect("first")), Applied)
	mark(t, w.b, topicA, 0, 1)
	db.MustExec("UPDATE inbox SET created_at = created_at - interval '1 day'")
	for range 3 {
		must(t, w.walk(t.Context()))
	}
	r.ends(t, nil)
	wantOutcome(t, <-waiting, Duplicate)
	wantEffects(t, db, "first", "rival")
}

// A task whose offset is marked is not begun, and one that is parked still is.
func TestMark_OfTasks(t *testing.T) {
	db := newDB(t)
	tasks := newTasks(t, db, TasksConfig{Unknown: Park})
	ms := records(topicA, 0, 3)
	fails := func(context.Context, Task) error { return errBoom }
	wantOutcome(t, tasks.Do(t.Context(), ms[0], fails), Failed)
	wantOutcome(t, tasks.Do(t.Context(), ms[0], fails), Parked)
	wantOutcome(t, tasks.Do(t.Context(), ms[1], fails), Failed) // its fate is not known, and it is not parked yet
	mark(t, tasks.box, topicA, 0, 3)
	for range 2 {
		for i, want := range []Outcome{Parked, Duplicate, Duplicate} {
			wantOutcome(t, tasks.Do(t.Context(), ms[i], func(context.Context, Task) error { t.Error("the effect ran"); return nil }), want)
		}
	}
	must(t, tasks.Resolve(t.Context(), ms[0].ID, true))
	wantOutcome(t, tasks.Do(t.Context(), ms[0], fails), Duplicate)
}

// Runs that another covers go, and so do those whose topic has forgotten all of them.
func TestMark_RunsThatAreOfNoUseGo(t *testing.T) {
	db := newDB(t)
	w, _ := newRowWalk(t, db, withMarks)
	mark(t, w.b, topicA, 5, 8)
	mark(t, w.b, topicA, 0, 2)
	mark(t, w.b, topicA, 2, 10)
	count := func(want int) {
		t.Helper()
		var n int
		must(t, db.Get(&n, "SELECT count(*) FROM inbox_mark"))
		if n != want {
			t.Errorf("%d runs, want %d", n, want)
		}
	}
	must(t, w.walk(t.Context()))
	count(2)
	purgeMarked(t, db, w)
	count(1)
	wantRuns(t, w.b, records(topicA, 0, 11), 10)
	pass(t, db, 6*day)
	must(t, w.walk(t.Context()))
	count(1)
	mark(t, w.b, topicA, 10, 11)
	pass(t, db, 2*day)
	must(t, w.walk(t.Context())) // it has grown meanwhile
	pass(t, db, day)
	must(t, w.walk(t.Context()))
	pass(t, db, 6*day)
	must(t, w.walk(t.Context()))
	count(1)
	pass(t, db, 2*day)
	must(t, w.walk(t.Context()))
	count(0)
}

// Members that think they own the same partitions mark at once, in any order: nobody waits
// for another in a circle, and what is marked is what they said.
func TestMark_AllAtOnce(t *testing.T) {
	db := newDB(t, "deadlock_timeout=20ms")
	b := newBox(t, db, Config{})
	const partitions, offsets, step = 6, 400, 5
	var wg sync.WaitGroup
	for member := range 4 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(member), 3))
			for i := range 60 {
				var rs []Run
				for _, p := range rng.Perm(partitions) {
					from := int64(rng.IntN(offsets/step)) * step // every other one of them: gaps stay
					if from/step%2 == 1 && i%3 > 0 {
						continue
					}
					rs = append(rs, Run{topicA, int32(p), from, from + 3})
				}
				if err := b.Mark(context.Background(), rs); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	var bad []int64 // the last two of each five were marked by nobody
	must(t, db.Select(&bad, `SELECT o FROM inbox_mark, generate_series(first, next - 1) AS o WHERE o % 5 >= 3`))
	if len(bad) > 0 {
		t.Errorf("offsets %v are marked, and nobody did", bad)
	}
	var n int
	must(t, db.Get(&n, "SELECT count(*) FROM inbox_mark"))
	if n < partitions*offsets/step/4 {
		t.Errorf("%d runs, the test wants more", n)
	}
}

func TestMark_RefusesEachMistake(t *testing.T) {
	b := newBox(t, openURL(t, "postgres://x@127.0.0.1:1/x"), Config{})
	good := Run{topicA, 0, 5, 9}
	for want, change := range map[string]func(*Run){
		"runs[1].Topic is zero, must be":      func(r *Run) { r.Topic = [16]byte{} },
		"runs[1].Partition is -1, must not":   func(r *Run) { r.Partition = -1 },
		"runs[1] is from -1 up to 9, must be": func(r *Run) { r.From = -1 },
		"runs[1] is from 5 up to 4, must be":  func(r *Run) { r.Upto = 4 },
		"connect: connection refused":         func(*Run) {},
	} {
		bad := good
		change(&bad)
		if err := b.Mark(t.Context(), []Run{good, bad}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Mark = %v, want %q", err, want)
		}
	}
	if err := b.Mark(t.Context(), []Run{{topicA, 0, 5, 5}}); err != nil {
		t.Errorf("of nothing: %v", err)
	}
}

func TestApart(t *testing.T) {
	run := func(p int32, from, upto int64) Run { return Run{topicA, p, from, upto} }
	given := []Run{run(1, 5, 7), run(0, 4, 6), run(0, 0, 3), run(1, 7, 9), run(0, 9, 9), run(0, 5, 8), run(2, 1, 2), run(0, 20, 21)}
	before := slices.Clone(given)
	got := apart(given)
	want := [][]Run{{run(0, 0, 3), run(1, 5, 9), run(2, 1, 2)}, {run(0, 4, 8)}, {run(0, 20, 21)}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("apart = %v, want %v", got, want)
	}
	if !slices.Equal(given, before) {
		t.Errorf("the caller's slice is now %v", given)
	}
	if got := apart(nil); len(got) != 0 {
		t.Errorf("apart of nothing = %v", got)
	}
}
