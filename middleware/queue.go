package middleware

import (
	"context"

	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/reentrant"
	"github.com/twmb/franz-go/pkg/kgo"
)

// QueueFunc is a handler of one record that queues its statements in place of running
// them: with pgx those of a whole batch go to the server in one flight, see
// [inbox.Inbox.ApplyQueue]. So it does not learn what came of them, and decides by the
// record alone or by conditions within SQL. A panic is that record's error.
type QueueFunc func(ctx context.Context, q *inbox.Queue, r *kgo.Record) error

func (f QueueFunc) applyTo(ctx context.Context, box *inbox.Inbox, ms []*Message) []inbox.Result {
	return box.ApplyQueue(ctx, claimsOf(ctx, ms), func(ctx context.Context, q *inbox.Queue, i int) error {
		m := ms[i]
		ctx = reentrant.Narrow(ctx, m.Names()...)
		return blame(ctx, protect(func() error { return f(ctx, q, m.Record) }))
	})
}
