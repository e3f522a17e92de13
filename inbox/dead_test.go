package inbox

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/onceward/onceward/internal/devstack/devtest"
)

var place = &Position{Topic: [16]byte{7}, Partition: 3, Offset: 42}

// The hook sees the message as it was applied, and its last error.
func TestDead_Letter(t *testing.T) {
	db := newDB(t)
	var got []DeadLetter
	b := newBox(t, db, Config{MaxAttempts: 2, DeadLetter: func(_ context.Context, _ *sqlx.Tx, d DeadLetter) error {
		got = append(got, d)
		return nil
	}})
	m := Message{ID: "a", Digest: []byte("1"), Position: place, Body: Bytes("payload"), Fences: []Fence{{"x", 4}}}
	for range 2 {
		b.Apply(t.Context(), m, fails)
	}
	if len(got) != 1 {
		t.Fatalf("%d dead letters, want 1", len(got))
	}
	d := got[0]
	body, err := d.Message.Body.MarshalBinary()
	if d.Attempts != 2 || !errors.Is(d.Err, errBoom) || d.Message.ID != "a" || d.Message.Position != place || string(body) != "payload" || err != nil || d.Message.Fences[0].Token != 4 {
		t.Errorf("dead letter = %+v", d)
	}
}

// Without a hook the row says that it is dead.
func TestDead_NoHook(t *testing.T) {
	db := newDB(t)
	b := newBox(t, db, Config{MaxAttempts: 1})
	wantDead(t, b.Apply(t.Context(), Message{ID: "a"}, fails), 1, errBoom)
	var dead bool
	must(t, db.Get(&dead, "SELECT dead FROM inbox"))
	if !dead {
		t.Error("the row is not dead")
	}
}

// Of a dead letter that is refused nothing is kept, the neighbours do not suffer, and the
// message goes on failing until it can be written.
func TestDead_LetterRefused(t *testing.T) {
	for name, refuse := range map[string]func(ctx context.Context, tx *sqlx.Tx) error{
		"error": fails, "SQL error": breaks, "panic": panics, "hidden SQL error": hides,
	} {
		for _, n := range []int{1, 6} {
			t.Run(fmt.Sprint(name, " of ", n), func(t *testing.T) {
				db := newDB(t)
				write, written := letters(t, db)
				broken := true
				b := newBox(t, db, Config{MaxAttempts: 1, DeadLetter: func(ctx context.Context, tx *sqlx.Tx, d DeadLetter) error {
					err := write(ctx, tx, d)
					if broken {
						return errors.Join(err, refuse(ctx, tx))
					}
					return err
				}})
				s := newScript(t, messages(n))
				cause := errors.New("cause")
				s.bad[0] = func(context.Context, *sqlx.Tx) error { return cause }
				r := b.ApplyBatch(t.Context(), s.ms, s.run)[0]
				wantOutcome(t, r, Failed)
				if !errors.Is(r.Err, cause) {
					t.Errorf("error = %v, want the handler's in it", r.Err)
				}
				wantLetters(t, written)
				wantAttempts(t, db, "m00:1:0")
				wantRows(t, db, n-1)
				wantEffects(t, db, ids(s.ms, 0)...)

				broken = false
				wantDead(t, b.ApplyBatch(t.Context(), s.ms, s.run)[0], 2, cause)
				wantLetters(t, written, "m00:2")
			})
		}
	}
}

// A dead letter that only COMMIT refuses is not believed to be written.
func TestDead_LetterRefusedAtCommit(t *testing.T) {
	for _, n := range []int{1, 6} {
		db := newDB(t)
		hook, written := letters(t, db)
		db.MustExec("ALTER TABLE letter ADD CONSTRAINT one UNIQUE (id) DEFERRABLE INITIALLY DEFERRED")
		db.MustExec("INSERT INTO letter (id, attempts) VALUES ('m00', 99)")
		b := newBox(t, db, Config{MaxAttempts: 1, DeadLetter: hook})
		s := newScript(t, messages(n))
		s.bad[0] = fails
		wantOutcome(t, b.ApplyBatch(t.Context(), s.ms, s.run)[0], Failed)
		wantLetters(t, written, "m00:99")
		wantRows(t, db, n-1)
		wantEffects(t, db, ids(s.ms, 0)...)

		db.MustExec("DELETE FROM letter")
		wantDead(t, b.ApplyBatch(t.Context(), s.ms, s.run)[0], 1, errBoom)
		wantLetters(t, written, "m00:1")
	}
}

// The letter and the row that says dead are one: neither is there without the other,
// whatever becomes of the COMMIT.
func TestDead_CommitCutOff(t *testing.T) {
	for f, then := range map[fault]Outcome{cutBefore: Dead, cutAfter: Duplicate} {
		address := devtest.PostgresURL(t)
		db := migrate(t, openURL(t, address))
		hook, written := letters(t, db)
		p, far := newProxy(t, address, "COMMIT")
		b := newBox(t, far, Config{MaxAttempts: 1, DeadLetter: hook})
		wantOutcome(t, b.Apply(t.Context(), Message{ID: "z"}, effect("z")), Applied) // so that the scope is known
		s := newScript(t, messages(4))
		s.bad[1] = fails
		p.next.Store(int32(f))
		wantOutcome(t, b.ApplyBatch(t.Context(), s.ms, s.run)[1], Failed)
		wantOutcome(t, b.ApplyBatch(t.Context(), s.ms, s.run)[1], then)
		wantLetters(t, written, "m01:1")
		wantRows(t, db, 5)
	}
}

// Two messages of one ID are a mistake of the producer. Where it is known which one this
// is, it is dead, once.
func TestDead_Conflict(t *testing.T) {
	drivers(t, func(t *testing.T, db *sqlx.DB) {
		hook, written := letters(t, db)
		b := newBox(t, db, Config{MaxAttempts: 3, DeadLetter: hook})
		wantOutcome(t, b.Apply(t.Context(), Message{ID: "a", Digest: []byte("1")}, effect("a")), Applied)
		ms := []Message{{ID: "b"}, {ID: "a", Digest: []byte("2"), Position: place, Fences: []Fence{{"x", 5}}}, {ID: "c"}}
		s := newScript(t, ms)
		got := b.ApplyBatch(t.Context(), ms, s.run)
		wantOutcomes(t, got, Applied, Dead, Applied)
		as[*ConflictError](t, got[1].Err)
		wantLetters(t, written, "a:0")
		wantOutcomes(t, b.ApplyBatch(t.Context(), ms, s.run), Duplicate, Duplicate, Duplicate)
		other := *place
		other.Offset++
		ms[1].Position = &other
		wantOutcome(t, b.ApplyBatch(t.Context(), ms, s.run)[1], Dead)
		wantLetters(t, written, "a:0", "a:0")

		ms[1].Position = nil // nobody could tell a second one from this one
		wantOutcome(t, b.ApplyBatch(t.Context(), ms, s.run)[1], Conflict)
		wantEffects(t, db, "a", "b", "c")
	})
}

// So is a message that cannot be told from others by its ID.
func TestDead_NoID(t *testing.T) {
	db := newDB(t)
	hook, written := letters(t, db)
	b := newBox(t, db, Config{MaxAttempts: 3, DeadLetter: hook})
	other := *place
	other.Partition = 4
	ms := []Message{{ID: "b"}, {ID: " ", Position: place}, {Position: &other}, {}, {Position: &Position{}}, {ID: "bad token", Fences: []Fence{{"x", 0}}, Position: place}}
	s := newScript(t, ms)
	got := b.ApplyBatch(t.Context(), ms, s.run)
	wantOutcomes(t, got, Applied, Dead, Dead, Failed, Failed, Duplicate)
	as[*IdentityError](t, got[1].Err)
	wantLetters(t, written, " :0", ":0")
	wantOutcomes(t, b.ApplyBatch(t.Context(), ms, s.run), Duplicate, Duplicate, Duplicate, Failed, Failed, Duplicate)
	wantOutcomes(t, newBox(t, db, Config{Consumer: "other"}).ApplyBatch(t.Context(), ms[1:2], s.run), Failed)
}

// Who counts attempts elsewhere gives a message up by hand.
func TestBury(t *testing.T) {
	db := newDB(t)
	hook, written := letters(t, db)
	b := newBox(t, db, Config{DeadLetter: hook, LockTimeout: 20 * time.Millisecond})
	m := Message{ID: "a", Fences: []Fence{{"x", 5}}}
	wantDead(t, b.Bury(t.Context(), m, errBoom), 0, errBoom)
	wantOutcome(t, b.Bury(t.Context(), m, errBoom), Duplicate)
	wantOutcome(t, b.Apply(t.Context(), m, effect("a")), Duplicate)
	wantLetters(t, written, "a:0")
	wantOutcome(t, b.Bury(t.Context(), Message{ID: "b", Fences: []Fence{{"x", 4}}}, errBoom), Stale)
	wantOutcome(t, b.Bury(t.Context(), Message{}, errBoom), Failed)
	wantDead(t, b.Bury(t.Context(), Message{Position: place}, errBoom), 0, errBoom)
	wantOutcome(t, b.Bury(t.Context(), Message{Position: place}, errBoom), Duplicate)

	r := claims(t, newBox(t, db, Config{}), Message{ID: "held"})
	wantOutcome(t, b.Bury(t.Context(), Message{ID: "held"}, errBoom), Busy)
	r.ends(t, errBoom)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	wantOutcome(t, b.Bury(ctx, Message{ID: "held"}, errBoom), Again)
	db.MustExec("DROP TABLE letter")
	wantOutcome(t, b.Bury(t.Context(), Message{ID: "held"}, errBoom), Failed)
	wantOutcome(t, b.Apply(t.Context(), Message{ID: "held"}, effect("held")), Applied)
}

func TestRedrive(t *testing.T) {
	drivers(t, func(t *testing.T, db *sqlx.DB) {
		b := newBox(t, db, Config{MaxAttempts: 1})
		m := Message{ID: "a", Digest: []byte("1"), Fences: []Fence{{"x", 5}}}
		wantDead(t, b.Apply(t.Context(), m, fails), 1, errBoom)

		r := b.Redrive(t.Context(), m, fails) // it stays dead
		wantOutcome(t, r, Failed)
		if !errors.Is(r.Err, errBoom) {
			t.Errorf("error = %v, want the handler's", r.Err)
		}
		wantAttempts(t, db)
		wantOutcome(t, b.Apply(t.Context(), m, effect("a")), Duplicate)
		stale := m
		stale.Fences = []Fence{{"x", 4}}
		wantOutcome(t, b.Redrive(t.Context(), stale, effect("stale")), Stale)

		mended := m
		mended.Digest = []byte("mended")
		wantOutcome(t, b.Redrive(t.Context(), mended, effect("a")), Applied)
		wantOutcome(t, b.Redrive(t.Context(), mended, effect("a")), Duplicate)
		wantOutcome(t, b.Redrive(t.Context(), m, effect("a")), Conflict)
		wantOutcome(t, b.Apply(t.Context(), mended, effect("a")), Duplicate)
		wantEffects(t, db, "a")
		var dead int
		must(t, db.Get(&dead, "SELECT count(*) FROM inbox WHERE dead"))
		if dead != 0 {
			t.Error("it is still dead")
		}
	})
}

// A dead message is redriven though its place in Kafka is marked as decided, and the next
// delivery of it finds that it is.
func TestRedrive_Marked(t *testing.T) {
	db := newDB(t)
	b := newBox(t, db, Config{MaxAttempts: 1})
	m := Message{ID: "a", Position: place}
	wantDead(t, b.Apply(t.Context(), m, fails), 1, errBoom)
	must(t, b.Mark(t.Context(), []Run{{place.Topic, place.Partition, place.Offset, place.Offset + 1}}))
	wantOutcome(t, b.Apply(t.Context(), Message{ID: "b", Position: place}, effect("b")), Duplicate) // it is marked
	wantOutcome(t, b.Redrive(t.Context(), m, effect("a")), Applied)
	wantOutcome(t, b.Apply(t.Context(), m, effect("a")), Duplicate)
	wantEffects(t, db, "a")
}

// A dead message is redriven once, from however many places at once.
func TestRedrive_Race(t *testing.T) {
	db := newDB(t)
	b := newBox(t, db, Config{MaxAttempts: 1, LockTimeout: time.Minute})
	m := Message{ID: "a", Fences: []Fence{{"x", 5}}}
	wantDead(t, b.Apply(t.Context(), m, fails), 1, errBoom)
	in, end := make(chan struct{}), make(chan struct{})
	first := make(chan Result, 1)
	go func() {
		first <- b.Redrive(context.Background(), m, func(ctx context.Context, tx *sqlx.Tx) error {
			close(in)
			<-end
			return effect("a")(ctx, tx)
		})
	}()
	<-in
	rest := make(chan Result, 2)
	go func() { rest <- b.Redrive(context.Background(), m, effect("a")) }()
	go func() { rest <- b.Apply(context.Background(), m, effect("a")) }()
	awaitBlocked(t, db, 2)
	close(end)
	wantOutcome(t, <-first, Applied)
	wantOutcome(t, <-rest, Duplicate)
	wantOutcome(t, <-rest, Duplicate)
	wantEffects(t, db, "a")
}

func TestRevive(t *testing.T) {
	db := newDB(t)
	b := newBox(t, db, Config{MaxAttempts: 2})
	m := Message{ID: "a"}
	for _, id := range []string{"a", "b"} {
		if ok, err := b.Revive(t.Context(), id); ok || err != nil {
			t.Errorf("revive of one that is not dead: %v, %v", ok, err)
		}
	}
	b.Apply(t.Context(), m, fails)
	wantDead(t, b.Apply(t.Context(), m, fails), 2, errBoom)
	if ok, err := b.Revive(t.Context(), "a"); !ok || err != nil {
		t.Errorf("revive: %v, %v", ok, err)
	}
	wantOutcome(t, b.Apply(t.Context(), m, fails), Failed) // it has all its attempts
	wantOutcome(t, b.Apply(t.Context(), m, effect("a")), Applied)
	if ok, err := b.Revive(t.Context(), "a"); ok || err != nil {
		t.Errorf("revive of one that was applied: %v, %v", ok, err)
	}
	if _, err := b.Revive(t.Context(), ""); err == nil {
		t.Error("no error without an ID")
	}
	wantEffects(t, db, "a")
}
