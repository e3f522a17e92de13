// Inbox measures the inbox, alone and behind the lock as a consumer has it, against the
// same effect without any of it and against what people write by hand, on a real Redis
// and a real PostgreSQL of its own, with fsync on.
//
//	go run ./inbox              all of it
//	go run ./inbox -quick       a look at everything; its targets are named "quick:..."
//	go run ./inbox -run 'single|batches'
//	go run ./inbox -rows 1000000
//
// It prints a line for each target (see package compare), and goes on if one is missed.
//
// Every measurement is checked, and a wrong one ends the program: the ledger holds each
// message that was applied once and nothing else, the orders were closed as often, and
// so many rows are in the inbox. What is counted is what was applied: messages that fail
// on purpose cost time and count for nothing.
//
// What is compared, and why it is fair:
//
//   - The effect is the same in all cases: an UPDATE of an order, and an INSERT into a
//     ledger. Where it is prepared, it is prepared on both sides.
//   - hand-rolled is what most people write: a mutex of redsync, then BEGIN, SELECT from a
//     table of seen messages, the effect, INSERT into that table, COMMIT, unlock. It has
//     no renewal and no fence, and a message is a transaction.
//   - Each case has tables and a pool of connections of its own. Autovacuum is off, so
//     that what one case leaves behind is not another's burden.
//   - The purge works in a table where old rows lie among young ones, in pages that were used
//     before, and goes by marks, which is the most work for it. Callers insert as fast as
//     they can meanwhile, without an effect. No young row may be missing afterwards.
//   - No two callers want one order at a time, so that nobody waits for a lock.
package main
