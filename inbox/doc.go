// Package inbox makes the transaction of a message commit at most once, with
// PostgreSQL alone: no broker, no lock service, no clock of the client.
//
// A message has an ID. [Inbox.Apply] begins a transaction, claims the ID by
// inserting its row, runs the handler with that transaction, and commits. The
// row and the effect commit together or not at all, so a row means: decided.
// [Inbox.ApplyBatch] does the same for many messages with one claim and one
// COMMIT, and gives each its own outcome; [Inbox.ApplySet] hands all of them to one
// handler at once, and with [Inbox.ApplyQueue] handlers queue their statements, which pgx
// sends together.
//
//	box, err := inbox.New(db, inbox.Config{Consumer: "orders"})
//	if err != nil {
//		return err
//	}
//	res := box.Apply(ctx, inbox.Message{ID: "order-1001-paid"}, func(ctx context.Context, tx *sqlx.Tx) error {
//		_, err := tx.ExecContext(ctx, "UPDATE orders SET state = 'paid' WHERE id = $1", 1001)
//		return err
//	})
//	if res.Outcome.Decided() {
//		// acknowledge the message: it will never be needed again
//	}
//
// # What is promised
//
//   - For one scope (tenant and consumer) and ID, one transaction commits while
//     the row is kept, whoever delivers the message, how often, and from how many
//     processes at once.
//   - A message with a [Fence] commits only if nobody with a greater token has
//     claimed that resource. The claim locks the fence until the transaction ends,
//     so transactions of one resource come one after the other.
//   - One failing message of a batch costs the others time, never their effect.
//   - What is not known is not guessed: whatever cannot be decided is [Again].
//
// # What is not promised
//
//   - A handler may run more than once. Its effect is what it writes with the
//     transaction it is given; mails and HTTP calls are at least once.
//   - What the handler read before the claim may be out of date. Decide on what
//     is read inside.
//   - A message without a fence is not serialised with fenced ones.
//   - The handler must not end the transaction, with its methods or by SQL. A
//     handler that commits also commits the rows of messages that did not run yet,
//     which are then lost. It is reported as [ErrEnded].
//
// # Who moves a message where
//
//	claim   row inserted                          the handler runs
//	        row there, same digest                Duplicate
//	        row there, other digest               Conflict
//	        no row, but a marked offset           Duplicate
//	        no row, a greater token stored        Stale
//	        row inserted, its lock is parked      Parked, after COMMIT, without the handler
//	        no row, a token that is too old       Stale
//	        waited longer than LockTimeout        Busy
//	        row purged meanwhile, or a twin       Again
//	handler nil                                   Applied, after COMMIT
//	        error with Skipped() bool             Skipped, after COMMIT
//	        other error, panic, hidden SQL error  Failed, its writes are gone
//	        lock timeout                          Again, its writes are gone
//	        deadlock, serialization failure       Again, all of the transaction
//	        ctx ended                             Again, all of the transaction
//	COMMIT  refused by the server                 Failed; a batch is halved to find whom it was
//	        no answer                             Again: claiming again tells what became of it
//	Failed  the last attempt, or a permanent one  Dead, with its dead letter; later copies are Duplicate
//	Dead    Redrive, handler nil                  Applied
//	        Revive                                as if it had never come
//
// # When things go wrong
//
// PostgreSQL down or restarted: everybody is Again, nothing was committed, or
// the COMMIT was lost on the way and the next claim says Duplicate.
//
// Process killed: the server rolls back. Process frozen, or its host gone: the
// server ends the transaction after [Config.MaxHold] idle, so the key is not
// blocked for ever, and the COMMIT of the frozen one fails.
//
// Connection lost while a handler runs: that message gets the error of its
// handler, and the others run again at once in a new transaction, so that a
// message that breaks connections (an own deadline in the middle of a query does
// so with lib/pq) is not the end of its neighbours.
//
// A network that swallows packets: COMMIT and ROLLBACK are given up after
// [Config.CommitTimeout]. Other statements wait for as long as the driver does
// after ctx has ended; set TCP keepalives.
//
// # Giving up
//
// With [Config.MaxAttempts] the inbox counts failures, in the transaction of the batch if
// that is committed, else in one of its own: so each is counted once, whichever process
// saw it, or not at all if the database cannot be asked. The last one makes the message
// [Dead]: its row stays, and [Config.DeadLetter] writes its dead letter in the same
// transaction, once. A success takes the memory of failures with it.
//
// Collisions, lost connections, the end of contexts and errors with a method Uncharged()
// bool that answers true are charged to nobody, until a message has met more than
// [MaxUncharged] of them in a row.
//
// With [Config.ParkKey] the messages of a lock that come after its dead letter wait: they
// are stored, and decided for whoever delivers them. [Inbox.Unpark] handles the dead letter
// and them, in order.
//
// A message that kills its process leaves no failure behind. It is found if it is
// delivered as a [Message.Suspect] to those who come after.
//
// # Effects outside of the database
//
// [Tasks] is for those: it writes down that a message is being worked on, lets the
// effect run, and writes down that it is done. In between there is a lease; a
// message whose lease ended is of unknown fate, and the [Policy] decides. With an
// idempotency key that the other side honours, [Retry] and [Ask] make the effect
// happen once; without one only [Park] makes it happen at most once.
//
// # Retention
//
// Rows stay until [Inbox.Purge] removes them, which refuses to keep them for less than
// the time in which a message can be delivered again.
//
// With marks they may go sooner. Whoever commits offsets to Kafka tells [Inbox.Mark] which
// runs of offsets are decided, and gives each message its [Position]: then a delivery
// inside a run is a Duplicate, with or without a row, and [PurgeConfig.Marks] removes the rows of
// marked offsets early. A gap between runs is never taken for decided. The claim reads the marks
// itself, so a member that was paused for any time knows what the others have marked. A
// mark does not know the ID: the producer's second copy at another offset, after the row of the first
// is gone, takes effect, and so does a delivery without a position. Rewinding a consumer on
// purpose does not make marked messages run again; a new [Config.Consumer] does.
//
// Rows of inbox_fence, one per lock that was ever claimed with, go when their token is a time and
// older than [Config.FenceRetention]. Tokens of half that age are [Stale] already, so
// a holder that sleeps for longer than its fence is kept cannot commit after a newer one.
//
// # Schema
//
// [Migrate] makes the tables, under names of your choice, and is never called by itself;
// [Export] hands the same SQL to other tools. [Check] says what is missing. The statements
// need SELECT, INSERT, UPDATE and DELETE only, keep no state in the session unless
// [Config.Prepare] says so, and so work behind PgBouncer in transaction mode (pgx needs
// default_query_exec_mode=exec or simple_protocol there). The statements of
// an older version run on a newer schema, so migrate first and then roll the code out.
package inbox
