package middleware

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/onceward/onceward/inbox"
	"github.com/twmb/franz-go/pkg/kgo"
)

// DeadLetter lets a function of records be the [inbox.Config.DeadLetter] of an inbox that
// [Inbox] works with: r is the record that is given up, d says why. What f writes with tx
// is committed with the decision or not at all, so a row that is to be sent to another
// topic belongs there, and a call of a Kafka client does not.
func DeadLetter(f func(ctx context.Context, tx *sqlx.Tx, r *kgo.Record, d inbox.DeadLetter) error) func(context.Context, *sqlx.Tx, inbox.DeadLetter) error {
	if f == nil {
		panic("middleware: DeadLetter of a nil function")
	}
	return func(ctx context.Context, tx *sqlx.Tx, d inbox.DeadLetter) error {
		b, ok := d.Message.Body.(body)
		if !ok {
			return fmt.Errorf("body of message %q is a %T, must be a record that came through middleware.Inbox", d.Message.ID, d.Message.Body)
		}
		return f(ctx, tx, b.r, d)
	}
}

// Unpark hands the records that are parked behind a dead letter of a lock to f, in order:
// see [inbox.Inbox.Unpark]. While a lock of that name is held, its lease gives the fence.
func Unpark(ctx context.Context, box *inbox.Inbox, fence inbox.Fence, f TxFunc) (handled int, err error) {
	return box.Unpark(ctx, fence, func(ctx context.Context, tx *sqlx.Tx, m inbox.ParkedMessage) error {
		r, err := ParseRecord(m.Body)
		if err != nil {
			return err
		}
		return f(ctx, tx, r)
	})
}

// A body is a record as the body of a message of the inbox. It is marshalled only if it
// has to be stored.
type body struct{ r *kgo.Record }

// A storedRecord is what is stored of a record: JSON, so that people can read it, and so
// that a later version can add to it.
type storedRecord struct {
	Topic       string
	Partition   int32
	Offset      int64
	LeaderEpoch int32
	Timestamp   time.Time
	Key, Value  []byte
	Headers     []kgo.RecordHeader
}

// MarshalBinary implements [encoding.BinaryMarshaler].
func (b body) MarshalBinary() ([]byte, error) {
	r := b.r
	return json.Marshal(storedRecord{r.Topic, r.Partition, r.Offset, r.LeaderEpoch, r.Timestamp, r.Key, r.Value, r.Headers})
}

// ParseRecord returns a record that was stored as the body of a message.
func ParseRecord(b []byte) (*kgo.Record, error) {
	var s storedRecord
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, fmt.Errorf("parse a stored record: %w", err)
	}
	return &kgo.Record{
		Topic: s.Topic, Partition: s.Partition, Offset: s.Offset, LeaderEpoch: s.LeaderEpoch, Timestamp: s.Timestamp,
		Key: s.Key, Value: s.Value, Headers: s.Headers,
	}, nil
}
