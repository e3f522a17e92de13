package inbox

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/jmoiron/sqlx"
)

// answering is a handler that has an effect, and an answer.
func answering(id string, answer []byte, err error) func(context.Context, *sqlx.Tx) ([]byte, error) {
	return func(ctx context.Context, tx *sqlx.Tx) ([]byte, error) {
		return answer, errors.Join(effect(id)(ctx, tx), err)
	}
}

func TestAnswer_ComesWithEachDuplicate(t *testing.T) {
	drivers(t, func(t *testing.T, db *sqlx.DB) {
		b := newBox(t, db, Config{})
		m := Message{ID: "a", Fences: []Fence{{"x", 2}}}
		want := []byte("{\"no\": 1}\x00\xff\\") // any bytes
		for i, outcome := range []Outcome{Applied, Duplicate, Duplicate} {
			got := b.Answer(t.Context(), m, answering("a", want, nil))
			wantOutcome(t, got, outcome)
			if !bytes.Equal(got.Answer, want) {
				t.Errorf("answer %d = %q, want %q", i, got.Answer, want)
			}
		}
		wantEffects(t, db, "a")
		// Whichever way it is delivered, and beside others.
		ms := []Message{{ID: "b"}, m, {ID: "c"}}
		got := b.ApplyBatch(t.Context(), ms, func(ctx context.Context, tx *sqlx.Tx, i int) error { return effect(ms[i].ID)(ctx, tx) })
		wantOutcomes(t, got, Applied, Duplicate, Applied)
		if !bytes.Equal(got[1].Answer, want) || got[0].Answer != nil || got[2].Answer != nil {
			t.Errorf("answers of a batch = %q, want that of the duplicate only", got)
		}
		if found, err := b.Forget(t.Context(), "a"); err != nil || !found {
			t.Fatal(found, err)
		}
		if got := b.Answer(t.Context(), m, answering("a", want, nil)); got.Outcome != Duplicate || got.Answer != nil {
			t.Errorf("after Forget: %v with answer %q, want a duplicate without", got.Outcome, got.Answer)
		}
	})
}

func TestAnswer_NoneAndEmpty(t *testing.T) {
	db := newDB(t)
	b := newBox(t, db, Config{})
	for id, want := range map[string][]byte{"none": nil, "empty": {}} {
		wantOutcome(t, b.Answer(t.Context(), Message{ID: id}, answering(id, want, nil)), Applied)
		got := b.Answer(t.Context(), Message{ID: id}, answering(id, want, nil))
		wantOutcome(t, got, Duplicate)
		if (got.Answer == nil) != (want == nil) || len(got.Answer) != 0 {
			t.Errorf("%s answer = %#v, want %#v", id, got.Answer, want)
		}
	}
}

// What failed has neither effect nor answer, and may be tried again.
func TestAnswer_Failed(t *testing.T) {
	db := newDB(t)
	b := newBox(t, db, Config{MaxAnswer: 10})
	m := Message{ID: "a"}

	got := b.Answer(t.Context(), m, answering("a", []byte("no"), errBoom))
	wantOutcome(t, got, Failed)
	if got.Answer != nil || !errors.Is(got.Err, errBoom) {
		t.Errorf("answer of a failed handler = %q, error %v", got.Answer, got.Err)
	}

	got = b.Answer(t.Context(), m, answering("a", make([]byte, 11), nil))
	wantOutcome(t, got, Failed)
	if e := as[*AnswerError](t, got.Err); e.Bytes != 11 || e.Limit != 10 || e.ID != "a" || !permanent(got.Err) {
		t.Errorf("error = %v", got.Err)
	}

	got = b.Answer(t.Context(), m, func(ctx context.Context, tx *sqlx.Tx) ([]byte, error) {
		_, err := tx.ExecContext(ctx, "SELECT 1/0")
		if err == nil {
			t.Error("division by zero is no error")
		}
		return []byte("hidden"), nil
	})
	wantOutcome(t, got, Failed)
	if !errors.Is(got.Err, ErrSwallowed) {
		t.Errorf("error = %v, want %v", got.Err, ErrSwallowed)
	}
	wantEffects(t, db)
	wantRows(t, db, 0)

	wantOutcome(t, b.Answer(t.Context(), m, answering("a", make([]byte, 10), nil)), Applied)
	wantEffects(t, db, "a")
}
