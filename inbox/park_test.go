package inbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/onceward/onceward/internal/devstack/devtest"
)

// keyed returns a message of a lock whose body is its ID.
func keyed(id, key string, token int64) Message {
	return Message{ID: id, Digest: []byte(id), Body: Bytes(id), Fences: []Fence{{key, token}}}
}

func parking(t *testing.T, db *sqlx.DB) *Inbox {
	t.Helper()
	return newBox(t, db, Config{MaxAttempts: 1, ParkKey: true, LockTimeout: time.Minute})
}

// wantParked checks what is stored, each as "id" or "id dead", in order.
func wantParked(t *testing.T, db *sqlx.DB, want ...string) {
	t.Helper()
	got := []string{}
	must(t, db.Select(&got, "SELECT id || CASE WHEN dead THEN ' dead' ELSE '' END FROM inbox_parked ORDER BY seq"))
	if !slices.Equal(got, want) {
		t.Errorf("parked = %q, want %q", got, want)
	}
}

// takes is a handler of parked messages that writes their effect and takes notes.
func takes(took *[]string, bad map[string]error) func(context.Context, *sqlx.Tx, ParkedMessage) error {
	return func(ctx context.Context, tx *sqlx.Tx, m ParkedMessage) error {
		*took = append(*took, m.ID)
		if string(m.Body) != m.ID || m.At.IsZero() {
			return fmt.Errorf("message %+v is not what was parked", m)
		}
		if err := effect(m.ID)(ctx, tx); err != nil {
			return err
		}
		return bad[m.ID]
	}
}

// Behind a dead letter the messages of its lock wait, in order and across restarts, while
// others go on. Unpark hands them out, and then the lock is as any other.
func TestPark(t *testing.T) {
	drivers(t, func(t *testing.T, db *sqlx.DB) {
		b := parking(t, db)
		wantDead(t, b.Apply(t.Context(), keyed("a", "x", 5), fails), 1, errBoom)
		wantParked(t, db, "a dead")

		b = parking(t, db) // another process
		ms := []Message{keyed("b", "x", 6), keyed("other", "y", 1)}
		s := newScript(t, ms)
		got := b.ApplyBatch(t.Context(), ms, s.run)
		wantOutcomes(t, got, Parked, Applied)
		if e := as[*BehindError](t, got[0].Err); e.Resource != "x" || e.ID != "b" || !skipped(got[0].Err) {
			t.Errorf("error = %+v, want x, b, and that nothing is left to do", e)
		}
		wantOutcome(t, b.Apply(t.Context(), keyed("c", "x", 6), effect("c")), Parked)
		wantOutcome(t, b.Apply(t.Context(), keyed("d", "x", 6), effect("d")), Parked)
		wantOutcome(t, b.Apply(t.Context(), keyed("b", "x", 6), effect("b")), Duplicate)
		wantOutcome(t, b.Apply(t.Context(), keyed("stale", "x", 4), effect("stale")), Stale)
		wantParked(t, db, "a dead", "b", "c", "d")
		if s.calls[0] != 0 {
			t.Error("a parked message was handled")
		}
		keys, err := b.ParkedKeys(t.Context())
		must(t, err)
		if len(keys) != 1 || keys[0].Resource != "x" || keys[0].Messages != 4 || keys[0].Since.IsZero() {
			t.Errorf("parked keys = %+v, want x with 4", keys)
		}

		stats, err := b.Stats(t.Context())
		must(t, err)
		if stats.Behind != 4 || stats.Dead != 1 {
			t.Errorf("Stats = %+v, want 4 behind, 1 dead", stats)
		}

		var took []string
		n, err := b.Unpark(t.Context(), Fence{"x", 7}, takes(&took, map[string]error{"c": errBoom}))
		if n != 2 || !errors.Is(err, errBoom) || !slices.Equal(took, []string{"a", "b", "c"}) {
			t.Errorf("unpark = %d, %v, took %q, want 2 and the error of c", n, err, took)
		}
		wantParked(t, db, "c", "d")
		wantOutcome(t, b.Apply(t.Context(), keyed("e", "x", 7), effect("e")), Parked) // still

		took = nil
		n, err = b.Unpark(t.Context(), Fence{"x", 0}, takes(&took, map[string]error{"d": skip{}}))
		if n != 3 || err != nil || !slices.Equal(took, []string{"c", "d", "e"}) {
			t.Errorf("unpark = %d, %v, took %q, want the rest", n, err, took)
		}
		wantParked(t, db)
		wantOutcome(t, b.Apply(t.Context(), keyed("f", "x", 7), effect("f")), Applied)
		wantOutcome(t, b.Apply(t.Context(), keyed("a", "x", 7), effect("a")), Duplicate)
		wantEffects(t, db, "a", "b", "c", "d", "e", "f", "other")
		if n, err := b.Unpark(t.Context(), Fence{"x", 7}, nil); n != 0 || err != nil {
			t.Errorf("unpark of nothing = %d, %v", n, err)
		}
		if n, err := b.Unpark(t.Context(), Fence{"never seen", 7}, nil); n != 0 || err != nil {
			t.Errorf("unpark of an unknown lock = %d, %v", n, err)
		}
		var dead int
		must(t, db.Get(&dead, "SELECT count(*) FROM inbox WHERE dead"))
		if dead != 0 {
			t.Error("what was unparked is still dead")
		}
	})
}

// What is dropped stays dead.
func TestPark_DropDead(t *testing.T) {
	db := newDB(t)
	b := parking(t, db)
	wantDead(t, b.Apply(t.Context(), keyed("a", "x", 5), fails), 1, errBoom)
	n, err := b.Unpark(t.Context(), Fence{"x", 5}, func(context.Context, *sqlx.Tx, ParkedMessage) error { return skip{} })
	if n != 1 || err != nil {
		t.Errorf("unpark = %d, %v", n, err)
	}
	var dead bool
	must(t, db.Get(&dead, "SELECT dead FROM inbox"))
	if !dead {
		t.Error("a dead letter that was dropped is not dead")
	}
	wantOutcome(t, b.Apply(t.Context(), keyed("b", "x", 5), effect("b")), Applied)
}

// In a batch that is full of trouble, too: the messages of one lock that come after wait,
// and those of others are what they are.
func TestPark_InTheBatch(t *testing.T) {
	db := newDB(t)
	b := parking(t, db)
	ms := make([]Message, 12)
	for i := range ms {
		ms[i] = keyed(fmt.Sprintf("m%02d", i), fmt.Sprint("key", i), 1)
	}
	s := newScript(t, ms)
	s.bad[3], s.bad[7] = fails, hides
	got := b.ApplyBatch(t.Context(), ms, s.run)
	wantOutcomes(t, got, Applied, Applied, Applied, Dead, Applied, Applied, Applied, Dead, Applied, Applied, Applied, Applied)
	for i := range ms {
		ms[i].ID = "n" + ms[i].ID
		ms[i].Body = Bytes(ms[i].ID)
	}
	s.bad = map[int]func(context.Context, *sqlx.Tx) error{5: fails}
	wantOutcomes(t, b.ApplyBatch(t.Context(), ms, s.run), Applied, Applied, Applied, Parked, Applied, Dead, Applied, Parked, Applied, Applied, Applied, Applied)
	wantParked(t, db, "m03 dead", "m07 dead", "nm03", "nm07", "nm05 dead")

	// A single one that fails takes nobody's parking with it.
	for i, o := range b.ApplyBatch(t.Context(), []Message{keyed("p", "key3", 1), keyed("q", "key0", 1)}, func(_ context.Context, _ *sqlx.Tx, i int) error { return errBoom }) {
		wantOutcome(t, o, []Outcome{Parked, Dead}[i])
	}
	// Nor does one that hides an error, or ends the transaction.
	for i, bad := range []func(context.Context, *sqlx.Tx) error{hides, func(ctx context.Context, tx *sqlx.Tx) error {
		_, err := tx.ExecContext(ctx, "ROLLBACK")
		return err
	}} {
		ms := []Message{keyed(fmt.Sprint("u", i), "key3", 1), keyed(fmt.Sprint("v", i), fmt.Sprint("other", i), 1)}
		wantOutcomes(t, b.ApplyBatch(t.Context(), ms, func(ctx context.Context, tx *sqlx.Tx, _ int) error { return bad(ctx, tx) }), Parked, Dead)
	}
	// Nor a set that does.
	set := []Message{keyed("r", "key3", 1), keyed("s", "key1", 1), keyed("t", "key2", 1)}
	got = b.ApplySet(t.Context(), set, func(_ context.Context, _ *sqlx.Tx, is []int) []error { return all(is, errBoom) })
	wantOutcomes(t, got, Parked, Dead, Dead)
}

// Of several locks of a message the first one is that of its lane.
func TestPark_SeveralFences(t *testing.T) {
	db := newDB(t)
	b := parking(t, db)
	wantDead(t, b.Apply(t.Context(), keyed("a", "x", 5), fails), 1, errBoom)
	xy := keyed("xy", "x", 5)
	xy.Fences = append(xy.Fences, Fence{"y", 1})
	wantOutcome(t, b.Apply(t.Context(), xy, effect("xy")), Parked)
	yx := keyed("yx", "y", 1)
	yx.Fences = append(yx.Fences, Fence{"x", 5})
	wantOutcome(t, b.Apply(t.Context(), yx, effect("yx")), Applied)
	wantParked(t, db, "a dead", "xy")
}

// Another consumer shares the fence, and neither waits nor opens it.
func TestPark_ScopesAreApart(t *testing.T) {
	db := newDB(t)
	b := parking(t, db)
	other := newBox(t, db, Config{Consumer: "other", MaxAttempts: 1, ParkKey: true})
	wantDead(t, b.Apply(t.Context(), keyed("a", "x", 5), fails), 1, errBoom)
	wantOutcome(t, other.Apply(t.Context(), keyed("b", "x", 5), effect("b")), Applied)
	wantDead(t, other.Apply(t.Context(), keyed("c", "x", 5), fails), 1, errBoom)
	keys, err := other.ParkedKeys(t.Context())
	must(t, err)
	if len(keys) != 1 || keys[0].Messages != 1 {
		t.Errorf("parked keys = %+v, want one with its own", keys)
	}
	if n, err := other.Unpark(t.Context(), Fence{"x", 5}, takes(new([]string), nil)); n != 1 || err != nil {
		t.Errorf("unpark = %d, %v, want its own", n, err)
	}
	wantOutcome(t, other.Apply(t.Context(), keyed("d", "x", 5), effect("d")), Applied)
	wantOutcome(t, b.Apply(t.Context(), keyed("e", "x", 5), effect("e")), Parked)
	wantParked(t, db, "a dead", "e")
}

// A message that comes while its lock is unparked waits for that, and is then handled or
// parked, but never both or neither, and never before those in front of it.
func TestPark_RaceWithUnpark(t *testing.T) {
	db := newDB(t)
	b := parking(t, db)
	wantDead(t, b.Apply(t.Context(), keyed("a", "x", 5), fails), 1, errBoom)
	done := make(chan Result, 1)
	var took []string
	n, err := b.Unpark(t.Context(), Fence{"x", 5}, func(ctx context.Context, tx *sqlx.Tx, m ParkedMessage) error {
		if m.ID == "a" {
			go func() { done <- b.Apply(context.Background(), keyed("b", "x", 5), effect("b")) }()
			awaitBlocked(t, db, 1)
		}
		return takes(&took, nil)(ctx, tx, m)
	})
	if err != nil || !slices.Equal(took, []string{"a"}) {
		t.Errorf("unpark = %d, %v, took %q", n, err, took)
	}
	wantOutcome(t, <-done, Applied)
	wantParked(t, db)
	var order []string
	must(t, db.Select(&order, "SELECT id FROM effect ORDER BY seq"))
	if !slices.Equal(order, []string{"a", "b"}) {
		t.Errorf("effects = %q, want a before b", order)
	}

	// The other way round: it is parked while Unpark waits for the fence.
	wantDead(t, b.Apply(t.Context(), keyed("c", "x", 5), fails), 1, errBoom)
	hold := db.MustBegin()
	hold.MustExec("SELECT FROM inbox_fence FOR UPDATE")
	unparked := make(chan error, 1)
	took = nil
	go func() { _, err := b.Unpark(context.Background(), Fence{"x", 0}, takes(&took, nil)); unparked <- err }()
	awaitBlocked(t, db, 1)
	hold.MustExec("INSERT INTO inbox_parked (resource, key, scope, dead, name, id, message) SELECT resource, gen_random_uuid(), scope, false, name, 'd', 'd' FROM inbox_parked")
	must(t, hold.Commit())
	must(t, <-unparked)
	if !slices.Equal(took, []string{"c", "d"}) {
		t.Errorf("took %q, want c, d", took)
	}
	wantParked(t, db)
}

// Nothing of a message that could not be unparked is lost, or done.
func TestPark_UnparkFails(t *testing.T) {
	for name, bad := range map[string]func(context.Context, *sqlx.Tx) error{"error": fails, "SQL error": breaks, "panic": panics, "hidden SQL error": hides, "connection": breakConn} {
		t.Run(name, func(t *testing.T) {
			db := newDB(t)
			b := parking(t, db)
			wantDead(t, b.Apply(t.Context(), keyed("a", "x", 5), fails), 1, errBoom)
			wantOutcome(t, b.Apply(t.Context(), keyed("b", "x", 5), effect("b")), Parked)
			n, err := b.Unpark(t.Context(), Fence{"x", 5}, func(ctx context.Context, tx *sqlx.Tx, m ParkedMessage) error {
				return errors.Join(effect(m.ID)(ctx, tx), bad(ctx, tx))
			})
			if n != 0 || err == nil || !strings.Contains(err.Error(), `unpark "x": handle message "a"`) {
				t.Errorf("unpark = %d, %v, want an error of a", n, err)
			}
			if errors.Is(err, ErrSwallowed) != (name == "hidden SQL error") {
				t.Errorf("error = %v", err)
			}
			wantParked(t, db, "a dead", "b")
			wantAttempts(t, db)
			wantEffects(t, db)
		})
	}
	db := newDB(t)
	b := parking(t, db)
	wantDead(t, b.Apply(t.Context(), keyed("a", "x", 5), fails), 1, errBoom)
	if _, err := b.Unpark(t.Context(), Fence{"x", 4}, nil); as[*StaleError](t, err).Stored != 5 {
		t.Errorf("error = %v, want 5 stored", err)
	}
	for _, f := range []Fence{{"", 1}, {"x", -1}} {
		_, err := b.Unpark(t.Context(), f, nil)
		as[*IdentityError](t, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err := b.Unpark(ctx, Fence{"x", 5}, func(context.Context, *sqlx.Tx, ParkedMessage) error { cancel(); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error = %v, want that of the context", err)
	}
	wantParked(t, db, "a dead")
}

// The COMMIT of an unparked message may be lost on the way: then the next call tells.
func TestPark_UnparkCutOff(t *testing.T) {
	for f, left := range map[fault][]string{cutBefore: {"a dead"}, cutAfter: {}} {
		address := devtest.PostgresURL(t)
		db := migrate(t, openURL(t, address))
		p, far := newProxy(t, address, "COMMIT")
		b := parking(t, far)
		wantDead(t, b.Apply(t.Context(), keyed("a", "x", 5), fails), 1, errBoom)
		p.next.Store(int32(f))
		if n, err := b.Unpark(t.Context(), Fence{"x", 5}, takes(new([]string), nil)); n != 0 || !errors.Is(err, ErrUnknown) {
			t.Errorf("unpark = %d, %v, want ErrUnknown", n, err)
		}
		wantParked(t, db, left...)
		if n, err := b.Unpark(t.Context(), Fence{"x", 5}, takes(new([]string), nil)); n != len(left) || err != nil {
			t.Errorf("unpark = %d, %v, want %d", n, err, len(left))
		}
		wantEffects(t, db, "a")
	}
}

// A message that cannot be stored is not lost.
func TestPark_Body(t *testing.T) {
	db := newDB(t)
	b := parking(t, db)
	m := keyed("a", "x", 5)
	m.Body = nil
	r := b.Apply(t.Context(), m, effect("a"))
	wantOutcome(t, r, Failed)
	if e := as[*IdentityError](t, r.Err); e.Field != "Body" {
		t.Errorf("error = %v, want one of the body", r.Err)
	}
	wantOutcome(t, b.Bury(t.Context(), m, errBoom), Failed)
	m.Fences = nil
	wantOutcome(t, b.Apply(t.Context(), m, effect("a")), Applied) // nothing waits for it

	m = keyed("b", "x", 5)
	m.Body = unmarshallable{}
	r = b.Apply(t.Context(), m, fails)
	wantOutcome(t, r, Failed) // it cannot die
	if !errors.Is(r.Err, errBoom) || !errors.Is(r.Err, errBody) {
		t.Errorf("error = %v, want both", r.Err)
	}
	wantDead(t, b.Apply(t.Context(), keyed("c", "x", 5), fails), 1, errBoom)
	r = b.Apply(t.Context(), m, effect("b"))
	wantOutcome(t, r, Failed)
	if !errors.Is(r.Err, errBody) {
		t.Errorf("error = %v, want that of the body", r.Err)
	}
	wantParked(t, db, "c dead")
	wantEffects(t, db, "a")
}

var errBody = errors.New("no body")

type unmarshallable struct{}

func (unmarshallable) MarshalBinary() ([]byte, error) { return nil, errBody }

// A dead letter that others wait for is redriven under their fence, and they still wait.
func TestPark_Redrive(t *testing.T) {
	db := newDB(t)
	b := parking(t, db)
	m := keyed("a", "x", 5)
	wantDead(t, b.Apply(t.Context(), m, fails), 1, errBoom)
	wantOutcome(t, b.Apply(t.Context(), keyed("b", "x", 5), effect("b")), Parked)
	if _, err := b.Revive(t.Context(), "a"); !errors.Is(err, ErrKeyParked) {
		t.Errorf("revive: %v, want ErrKeyParked", err)
	}
	other := keyed("a", "y", 1)
	if r := b.Redrive(t.Context(), other, effect("a")); r.Outcome != Failed || !strings.Contains(r.Err.Error(), `give it the fence of "x"`) {
		t.Errorf("redrive with another fence: %v (%v), want that it needs that of x", r.Outcome, r.Err)
	}
	wantParked(t, db, "a dead", "b")
	wantOutcome(t, b.Redrive(t.Context(), m, effect("a")), Applied)
	wantParked(t, db, "b")
	wantOutcome(t, b.Apply(t.Context(), keyed("c", "x", 5), effect("c")), Parked)
	if n, err := b.Unpark(t.Context(), Fence{"x", 5}, takes(new([]string), nil)); n != 2 || err != nil {
		t.Errorf("unpark = %d, %v, want 2", n, err)
	}
	wantEffects(t, db, "a", "b", "c")

	// Where nobody waits, the lock is open at once.
	wantDead(t, b.Apply(t.Context(), keyed("d", "x", 5), fails), 1, errBoom)
	wantOutcome(t, b.Redrive(t.Context(), keyed("d", "x", 5), effect("d")), Applied)
	wantOutcome(t, b.Apply(t.Context(), keyed("e", "x", 5), effect("e")), Applied)
	var closed int
	must(t, db.Get(&closed, "SELECT count(*) FROM inbox_fence WHERE parked"))
	if closed != 0 {
		t.Error("a fence is still marked as parked")
	}
}

// Handlers that queue their statements, where COMMIT may go along with the last of them,
// are counted, given up and parked like any others.
func TestPark_Queue(t *testing.T) {
	drivers(t, func(t *testing.T, db *sqlx.DB) {
		b := newBox(t, db, Config{MaxAttempts: 2, ParkKey: true})
		bad := map[string]bool{"a": true}
		apply := func(ids ...string) []Result {
			ms := make([]Message, len(ids))
			for i, id := range ids {
				ms[i] = keyed(id, id[:1], 1)
			}
			return b.ApplyQueue(t.Context(), ms, func(_ context.Context, q *Queue, i int) error {
				q.Exec("INSERT INTO effect (id, n) VALUES ($1, $2)", ids[i], map[bool]int{true: -1, false: 1}[bad[ids[i]]])
				return nil
			})
		}
		wantOutcomes(t, apply("a", "b", "c"), Failed, Applied, Applied)
		wantAttempts(t, db, "a:1:0")
		bad["a"] = false
		wantOutcomes(t, apply("a", "b1", "c1"), Applied, Applied, Applied)
		wantAttempts(t, db)
		bad["a1"] = true
		wantOutcomes(t, apply("a1"), Failed)
		wantOutcomes(t, apply("a1", "b2", "c2"), Dead, Applied, Applied)
		wantOutcomes(t, apply("a2", "b3", "c3"), Parked, Applied, Applied)
		wantOutcomes(t, apply("a3", "b4"), Parked, Applied)
		wantOutcomes(t, apply("a4"), Parked)
		wantParked(t, db, "a1 dead", "a2", "a3", "a4")
		wantEffects(t, db, "a", "b", "b1", "b2", "b3", "b4", "c", "c1", "c2", "c3")
		if n, err := b.Unpark(t.Context(), Fence{"a", 1}, takes(new([]string), nil)); n != 4 || err != nil {
			t.Errorf("unpark = %d, %v, want 4", n, err)
		}
		wantOutcomes(t, apply("a5", "b5"), Applied, Applied)
	})
}
