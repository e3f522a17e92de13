// Package middleware is the way of a batch of Kafka records through locks, the
// inbox and the application's handler.
//
// One shape flows through all of it: a [Handler] gets a batch of messages with
// distinct keys and answers with an error per message. A [Middleware] wraps a
// handler in another, and [Chain] writes the wrapping down, outermost first. Most
// users write only a function of one record:
//
//	RecordFunc   func(ctx, *kgo.Record) error                  effects without a transaction
//	TxFunc       func(ctx, *sqlx.Tx, *kgo.Record) error        effects in the inbox's transaction
//	QueueFunc    func(ctx, *inbox.Queue, *kgo.Record) error    the same, queued: fast with pgx
//	TxBatchFunc  func(ctx, *sqlx.Tx, []*kgo.Record) []error    the same, for set-based SQL
//
//	h := middleware.Chain(
//		middleware.Inbox(box, middleware.TxFunc(closeOrder)),
//		middleware.Observe(seen), middleware.Lock(locker),
//	)
//
// [Inbox] is what makes an effect happen once: the message's ID and the effect
// commit together or not at all. [Lock] spares two workers the fight over one
// key, and its fence keeps a holder whose lock has passed to another from
// committing after that one. Each works without the other.
//
// # What an error means
//
// nil and [Skip] mean decided: the offset may be committed. Any other error
// leaves the message undecided, and it comes again. [Classify] tells how: an
// error is an attempt that failed, unless it says that nobody is to blame (a
// busy key, a lost lease, the end of a context), that the message can never
// succeed ([Permanent]), or that the consumer must [Stop]. A panic is an error
// with a stack.
//
// With [inbox.Config.MaxAttempts] the inbox counts failures and gives up, and [DeadLetter]
// writes what is left of a message, in the transaction that says so.
//
// # What handlers must keep in mind
//
// A handler may run again for a message whose earlier run was undone: what is
// outside of its transaction happens at least once. It must stop when its
// context ends; if it does not, it cannot commit once a newer holder has
// claimed. It must decide on what it reads inside its transaction, after the
// claim: what was read before may be out of date.
//
// No middleware changes a message, marks anything as done before the handler has
// returned nil, or calls the next handler twice.
package middleware
