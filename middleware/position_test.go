package middleware_test

import (
	"testing"

	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/middleware"
)

// The place of a record goes with its claim, so that what was marked is decided without
// the handler. A record whose topic is not known by its ID has no place.
func TestInbox_KnowsThePlace(t *testing.T) {
	db, insert := effects(t, nil)
	box := newInbox(t, db)
	h := middleware.Inbox(box, insert)
	ms := messages(t, "a:1", "b:1", "c:1", "d:1")
	topic := [16]byte{7}
	for i, m := range ms[:3] {
		m.TopicID, m.Record.Partition, m.Record.Offset = topic, 2, int64(i)
	}
	if err := box.Mark(t.Context(), []inbox.Run{{Topic: topic, Partition: 2, From: 1, Upto: 3}}); err != nil {
		t.Fatal(err)
	}
	for i, err := range handle(t, h, ms) {
		if err != nil {
			t.Errorf("message %d: %v, want decided", i, err)
		}
	}
	wantEffects(t, db, map[string]int{"a:1": 1, "d:1": 1})
	var places int
	if err := db.Get(&places, "SELECT count(*) FROM inbox WHERE topic = '07000000-0000-0000-0000-000000000000' AND part = 2 AND off = 0"); err != nil || places != 1 {
		t.Errorf("%d rows have the place (%v), want 1", places, err)
	}
}
