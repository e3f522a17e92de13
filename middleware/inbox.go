package middleware

import (
	"context"
	"crypto/sha256"

	"github.com/jmoiron/sqlx"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/reentrant"
	"github.com/twmb/franz-go/pkg/kgo"
)

// TxFunc is a handler of one record that writes with the transaction it is given.
// It must not commit or roll back, and may run more than once for a record:
// whatever an earlier run wrote with tx is undone. It must decide on what it
// reads with tx, not on what it read before. A panic is that record's error.
type TxFunc func(ctx context.Context, tx *sqlx.Tx, r *kgo.Record) error

// A TxHandler is one of the handler forms with a transaction: [TxFunc], [QueueFunc] or
// [TxBatchFunc].
type TxHandler interface {
	applyTo(ctx context.Context, box *inbox.Inbox, ms []*Message) []inbox.Result
}

// Inbox lets h take effect exactly once for each message ID. One transaction
// holds the claim of a whole batch and the effects; a message that was seen
// before is decided without h.
//
// It is a [Handler], the innermost of a chain, since it owns the transaction.
// With [Lock] around it, the claim also refuses a holder whose lock has passed
// to another one that has claimed.
func Inbox(box *inbox.Inbox, h TxHandler) Handler {
	if box == nil {
		panic("middleware: Inbox of a nil inbox")
	}
	one, isOne := h.(TxFunc)
	queue, isQueue := h.(QueueFunc)
	batch, isBatch := h.(TxBatchFunc)
	if h == nil || isOne && one == nil || isQueue && queue == nil || isBatch && batch == nil {
		panic("middleware: Inbox of a nil handler")
	}
	apply := HandlerFunc(func(ctx context.Context, ms []*Message) []error {
		errs := make([]error, len(ms))
		for i, r := range h.applyTo(ctx, box, ms) {
			note(ctx, ms[i], r.Outcome)
			errs[i] = r.Err
		}
		return errs
	})
	return HandlerFunc(func(ctx context.Context, ms []*Message) []error {
		errs := make([]error, len(ms))
		for i, m := range ms {
			errs[i] = lost(ctx, m)
		}
		HandOn(ctx, apply, ms, errs)
		return errs
	})
}

// lost says why a lease of m is over, if one is. Such a message leaves the batch
// before the claim: another may hold its lock. After the claim its neighbours
// need not care, since the claim has locked the fence.
func lost(ctx context.Context, m *Message) error {
	for _, name := range m.Names() {
		if lease, ok := reentrant.FromContext(ctx, name); ok && lease.Context().Err() != nil {
			return context.Cause(lease.Context())
		}
	}
	return nil
}

func (f TxFunc) applyTo(ctx context.Context, box *inbox.Inbox, ms []*Message) []inbox.Result {
	return box.ApplyBatch(ctx, claimsOf(ctx, ms), func(ctx context.Context, tx *sqlx.Tx, i int) error {
		m := ms[i]
		ctx = reentrant.Narrow(ctx, m.Names()...)
		return blame(ctx, protect(func() error { return f(ctx, tx, m.Record) }))
	})
}

func claimsOf(ctx context.Context, ms []*Message) []inbox.Message {
	claims := make([]inbox.Message, len(ms))
	for i, m := range ms {
		claims[i] = claimOf(ctx, m)
	}
	return claims
}

// claimOf returns what the inbox needs to know of m: its ID, its fingerprint, its place, and
// the fences of the locks that ctx carries for it.
func claimOf(ctx context.Context, m *Message) inbox.Message {
	c := inbox.Message{ID: m.ID, Digest: m.Digest, Body: body{m.Record}, Suspect: m.Suspect}
	if c.Digest == nil {
		sum := sha256.Sum256(m.Record.Value)
		c.Digest = sum[:]
	}
	if m.TopicID != ([16]byte{}) {
		c.Position = &inbox.Position{Topic: m.TopicID, Partition: m.Record.Partition, Offset: m.Record.Offset}
	}
	for _, name := range m.Names() {
		if lease, ok := reentrant.FromContext(ctx, name); ok {
			c.Fences = append(c.Fences, inbox.Fence{Resource: lease.Resource(), Token: lease.Fence()})
		}
	}
	return c
}

// TxBatchFunc is a handler of the fresh records of a whole batch, which writes them with
// statements about sets: the fastest form, where few records fail. It returns nil, or
// one error per record in the same order; see [inbox.Inbox.ApplySet] for what an error
// costs. Its context carries the leases of all records and ends with none of them: after the claim their
// fences are locked.
type TxBatchFunc func(ctx context.Context, tx *sqlx.Tx, rs []*kgo.Record) []error

func (f TxBatchFunc) applyTo(ctx context.Context, box *inbox.Inbox, ms []*Message) []inbox.Result {
	return box.ApplySet(ctx, claimsOf(ctx, ms), func(ctx context.Context, tx *sqlx.Tx, is []int) []error {
		rs := make([]*kgo.Record, len(is))
		for j, i := range is {
			rs[j] = ms[i].Record
		}
		return f(ctx, tx, rs)
	})
}
