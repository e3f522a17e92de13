package service

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/onceward/onceward/middleware"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Kinds of events.
const (
	Timeout = "timeout" // the deadline of the order is over
	Remind  = "remind"  // the customer is to be told that it will be
)

// An Event is about one order.
type Event struct {
	Kind     string `json:"kind"`
	Order    int64  `json:"order"`
	Deadline int64  `json:"deadline"` // seconds since 1970
}

// ID is the business ID. It holds the deadline, so that an order whose deadline
// was moved can time out again, and nothing that differs between two tellings of
// the same timeout.
func (e Event) ID() string {
	return fmt.Sprintf("%s:%d:%d", e.Kind, e.Order, e.Deadline)
}

// LockName is the business key of an order.
func LockName(order int64) string { return "order:" + strconv.FormatInt(order, 10) }

// Record returns the event as a record without topic.
func (e Event) Record() *kgo.Record {
	value, err := json.Marshal(e)
	if err != nil {
		panic(err) // not with these fields
	}
	return &kgo.Record{Key: []byte(LockName(e.Order)), Value: value}
}

// ParseEvent reads the event of a record.
func ParseEvent(r *kgo.Record) (Event, error) {
	var e Event
	d := json.NewDecoder(bytes.NewReader(r.Value))
	d.DisallowUnknownFields()
	if err := d.Decode(&e); err != nil {
		return Event{}, fmt.Errorf("event: %w", err)
	}
	switch {
	case e.Kind != Timeout && e.Kind != Remind:
		return Event{}, fmt.Errorf("event: kind is %q, must be %s or %s", e.Kind, Timeout, Remind)
	case e.Order < 1:
		return Event{}, fmt.Errorf("event: order is %d, must be at least 1", e.Order)
	case e.Deadline < 1:
		return Event{}, fmt.Errorf("event: deadline is %d, must be seconds since 1970", e.Deadline)
	}
	return e, nil
}

// Identify is the one place where keys and IDs are decided.
func Identify(r *kgo.Record) (middleware.Identity, error) {
	e, err := ParseEvent(r)
	if err != nil {
		return middleware.Identity{}, err
	}
	return middleware.Identity{Key: LockName(e.Order), ID: e.ID()}, nil
}
