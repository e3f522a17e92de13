package middleware_test

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/middleware"
	"github.com/twmb/franz-go/pkg/kgo"
)

// A record that is given up is decided for the consumer, and its dead letter, with the
// record at hand, is committed with that.
func TestDeadLetter(t *testing.T) {
	boom := errors.New("boom")
	db, insert := effects(t, map[string]error{"b:1": boom, "c:1": middleware.Permanent(boom)})
	if _, err := db.Exec("CREATE TABLE letter (v text, attempts int)"); err != nil {
		t.Fatal(err)
	}
	if err := inbox.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	box, err := inbox.New(db, inbox.Config{
		Consumer: "test", Logger: slog.New(slog.DiscardHandler), MaxAttempts: 2,
		DeadLetter: middleware.DeadLetter(func(ctx context.Context, tx *sqlx.Tx, r *kgo.Record, d inbox.DeadLetter) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO letter VALUES ($1, $2)", string(r.Value), d.Attempts)
			return err
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	var outcomes []inbox.Outcome
	h := middleware.Chain(middleware.Inbox(box, insert), middleware.Observe(func(e middleware.Event) { outcomes = append(outcomes, e.Outcome) }))
	ms := messages(t, "a:1", "b:1", "c:1")
	for range 2 {
		for i, err := range h.Handle(t.Context(), ms) {
			if (middleware.Classify(err) == middleware.Decided) != (i != 1 || len(outcomes) > 3) {
				t.Errorf("%s: %v", ms[i].ID, err)
			}
		}
	}
	want := []inbox.Outcome{inbox.Applied, inbox.Failed, inbox.Dead, inbox.Duplicate, inbox.Dead, inbox.Duplicate}
	if !slices.Equal(outcomes, want) {
		t.Errorf("outcomes = %v, want %v", outcomes, want)
	}
	var letters []string
	if err := db.Select(&letters, "SELECT v || ' ' || attempts FROM letter ORDER BY v"); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(letters, []string{"b:1 2", "c:1 1"}) {
		t.Errorf("dead letters = %q", letters)
	}
	wantEffects(t, db, map[string]int{"a:1": 1})
}

// What its deliverer suspects is written down before the handler runs.
func TestInbox_Suspect(t *testing.T) {
	db, insert := effects(t, nil)
	if err := inbox.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	box, err := inbox.New(db, inbox.Config{Consumer: "test", Logger: slog.New(slog.DiscardHandler), MaxAttempts: 3})
	if err != nil {
		t.Fatal(err)
	}
	started := map[string]int{}
	h := middleware.Inbox(box, middleware.TxFunc(func(ctx context.Context, tx *sqlx.Tx, r *kgo.Record) error {
		var n int
		err := db.GetContext(ctx, &n, "SELECT count(*) FROM inbox_attempt WHERE started > 0") // what is committed
		started[string(r.Value)] = n
		return errors.Join(err, insert(ctx, tx, r))
	}))
	ms := messages(t, "a:1", "b:1")
	ms[1].Suspect = true
	for _, err := range handle(t, h, ms) {
		if err != nil {
			t.Error(err)
		}
	}
	if started["a:1"] != 0 || started["b:1"] != 1 {
		t.Errorf("starts on record = %v, want one for b", started)
	}
	wantEffects(t, db, map[string]int{"a:1": 1, "b:1": 1})
}

// Records behind a dead one of their key come back as they were.
func TestUnpark(t *testing.T) {
	db, insert := effects(t, map[string]error{"a:1": middleware.Permanent(errors.New("boom"))})
	if err := inbox.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	box, err := inbox.New(db, inbox.Config{Consumer: "test", Logger: slog.New(slog.DiscardHandler), MaxAttempts: 3, ParkKey: true})
	if err != nil {
		t.Fatal(err)
	}
	l, _ := newLocker(t)
	h := middleware.Chain(middleware.Inbox(box, insert), middleware.Lock(l))
	for i, v := range []string{"a:1", "a:2", "b:1", "a:3"} {
		if err := h.Handle(t.Context(), messages(t, v))[0]; middleware.Classify(err) != middleware.Decided || (err == nil) != (i == 2) {
			t.Errorf("%s: %v", v, err)
		}
	}
	wantEffects(t, db, map[string]int{"b:1": 1})
	keys, err := box.ParkedKeys(t.Context())
	if err != nil || len(keys) != 1 || keys[0].Messages != 3 {
		t.Fatalf("parked keys = %+v, %v, want one with 3", keys, err)
	}
	var order []string
	n, err := middleware.Unpark(t.Context(), box, inbox.Fence{Resource: keys[0].Resource}, func(ctx context.Context, tx *sqlx.Tx, r *kgo.Record) error {
		order = append(order, string(r.Value))
		_, err := tx.ExecContext(ctx, "INSERT INTO effect VALUES ($1)", string(r.Value))
		return err
	})
	if n != 3 || err != nil || !slices.Equal(order, []string{"a:1", "a:2", "a:3"}) {
		t.Errorf("unpark = %d, %v, order %q", n, err, order)
	}
	if err := h.Handle(t.Context(), messages(t, "a:4"))[0]; err != nil {
		t.Error(err)
	}
	wantEffects(t, db, map[string]int{"a:1": 1, "a:2": 1, "a:3": 1, "a:4": 1, "b:1": 1})
}

func TestDeadLetter_OtherBody(t *testing.T) {
	hook := middleware.DeadLetter(func(context.Context, *sqlx.Tx, *kgo.Record, inbox.DeadLetter) error { return nil })
	if err := hook(t.Context(), nil, inbox.DeadLetter{Message: inbox.Message{Body: inbox.Bytes("x")}}); err == nil {
		t.Error("a body that is no record is accepted")
	}
}

// What is stored of a record gives it back.
func TestParseRecord(t *testing.T) {
	db, _ := effects(t, nil)
	if err := inbox.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	var stored []byte
	box, err := inbox.New(db, inbox.Config{
		Consumer: "test", Logger: slog.New(slog.DiscardHandler), MaxAttempts: 1,
		DeadLetter: func(_ context.Context, _ *sqlx.Tx, d inbox.DeadLetter) (err error) {
			stored, err = d.Message.Body.MarshalBinary()
			return err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	h := middleware.Inbox(box, middleware.TxFunc(func(context.Context, *sqlx.Tx, *kgo.Record) error { return errors.New("boom") }))
	r := &kgo.Record{
		Topic: "orders", Partition: 3, Offset: 1 << 40, LeaderEpoch: 7, Timestamp: time.UnixMilli(1700000000123).UTC(),
		Key: []byte{0, 0xff}, Value: []byte("заказ\x00"), Headers: []kgo.RecordHeader{{Key: "a", Value: []byte{1}}, {Key: "a", Value: nil}},
	}
	for _, r := range []*kgo.Record{r, {Topic: "t"}} {
		h.Handle(t.Context(), []*middleware.Message{{Identity: middleware.Identity{Key: "k", ID: r.Topic}, Record: r, Attempt: 1}})
		got, err := middleware.ParseRecord(stored)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, r) {
			t.Errorf("got  %+v\nwant %+v", got, r)
		}
	}
	if _, err := middleware.ParseRecord([]byte("{")); err == nil {
		t.Error("nonsense is accepted")
	}
}
