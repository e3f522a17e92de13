package inbox

import (
	"context"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
)

// Where messages come again, the next ones are looked up before anything is locked.
func TestRecall_LocksNothing(t *testing.T) {
	drivers(t, func(t *testing.T, db *sqlx.DB) {
		b := newBox(t, db, Config{LockTimeout: 50 * time.Millisecond})
		ms := messages(MaxBatch)
		apply := func(ms []Message) []Result {
			return b.ApplyBatch(t.Context(), ms, func(ctx context.Context, tx *sqlx.Tx, i int) error { return effect(ms[i].ID)(ctx, tx) })
		}
		for _, r := range apply(ms) {
			wantOutcome(t, r, Applied)
		}
		again := ms[0]
		again.Fences = []Fence{{ms[0].Fences[0].Resource, 3}}
		claims(t, newBox(t, db, Config{}), Message{ID: "other", Fences: []Fence{{again.Fences[0].Resource, 2}}})

		wantOutcome(t, apply([]Message{again})[0], Busy) // the claim waits for whoever holds the lock
		for _, r := range apply(ms[1:]) {
			wantOutcome(t, r, Duplicate)
		}
		wantOutcome(t, apply([]Message{again})[0], Duplicate)
		wantEffects(t, db, ids(ms)...)
	})
}

func TestRecall_Outcomes(t *testing.T) {
	drivers(t, func(t *testing.T, db *sqlx.DB) {
		b := newBox(t, db, Config{})
		a := Message{ID: "a", Digest: []byte("v1")}
		wantOutcome(t, b.Answer(t.Context(), a, answering("a", []byte("yes"), nil)), Applied)
		b.memory.old = 1
		changed := Message{ID: "a", Digest: []byte("v2")}
		wantOutcome(t, b.Apply(t.Context(), changed, effect("changed")), Conflict)
		b.memory.old = 1
		ms := []Message{a, {ID: "b", Fences: []Fence{{"r", 1}}}, {ID: "c"}}
		got := b.ApplyBatch(t.Context(), ms, func(ctx context.Context, tx *sqlx.Tx, i int) error { return effect(ms[i].ID)(ctx, tx) })
		wantOutcomes(t, got, Duplicate, Applied, Applied)
		if string(got[0].Answer) != "yes" {
			t.Errorf("answer = %q, want that of the first time", got[0].Answer)
		}
		wantEffects(t, db, "a", "b", "c")

		b.memory.old = 1
		db.MustExec(`DROP TABLE inbox`)
		wantOutcomes(t, b.ApplyBatch(t.Context(), ms[:1], nil), Again)
	})
}

func TestRecall_Memory(t *testing.T) {
	var m memory
	many := func(n int, o Outcome) []*entry {
		es := make([]*entry, n)
		for i := range es {
			es[i] = &entry{result: Result{Outcome: o}}
		}
		return es
	}
	for i, step := range []struct {
		n    int
		o    Outcome
		want bool
	}{
		{MaxBatch, Applied, false},
		{MaxBatch, Duplicate, true},
		{1, Applied, true}, // one alone says little
		{4 * MaxBatch, Failed, false},
		{1, Conflict, false},
	} {
		m.note(many(step.n, step.o))
		if m.mostlyOld() != step.want {
			t.Errorf("step %d: mostly old is %v, want %v", i, !step.want, step.want)
		}
	}
	singles := 0
	for ; !m.mostlyOld() && singles < 1000; singles++ {
		m.note(many(1, Duplicate))
	}
	if singles < 30 || singles > 60 {
		t.Errorf("it took %d single messages to notice, want about 45", singles)
	}
}
