// Package reentrant is a distributed lock in Redis for work that is done under a
// business key: one owner at a time, re-entered through the context, kept alive
// by a watchdog, and numbered by a fence.
//
// # What it promises
//
//   - While Redis and clocks behave, a lock has one owner. An owner is a random
//     value made for each outermost [Locker.Acquire]; it travels in the context
//     of the [Lease], not in a goroutine or a host name.
//   - Acquire with a context that carries the lock enters it once more (depth +
//     1, same fence). Each Release gives one back, in any order; the last frees
//     the lock.
//   - The lease is renewed each third of its TTL until it is released. Its
//     context ends, with a cause, before Redis can give the lock to another:
//     trust counts from before the request was sent, less a margin, and a timer
//     of its own ends it whatever the network does.
//   - Each grant has a higher [Lease.Fence] than all grants of that lock before.
//     A re-entry never makes a new grant: if the lock is gone, it is lost.
//   - Every command may be repeated by the client, and arrive late: depths are
//     absolute, owners are fresh, so nothing is counted twice and nothing late
//     touches a newer hold.
//
// # What it does not promise
//
// Redis alone cannot make an effect happen once. A failover may forget a lock, a
// paused process may wake up after its lease, and a handler that ignores its
// context goes on. Compare the fence where you write, in the same transaction
// (package inbox does), and the late one is refused. The fence itself grows
// through the loss of all of Redis, unless the clock of the new server lags by
// more than the failover took; then fences are refused that should not be, and
// [FenceHints] gets past that.
//
// # When things fail
//
//	Redis does not answer an Acquire   error; what may have been granted is withdrawn in
//	                                   the background, else it ends by its TTL
//	... a renewal                      repeated while the trust lasts, then the context
//	                                   ends: LostError, Unreachable
//	... a Release                      error; the lock ends by its TTL
//	Redis restarts empty, fails over   the next renewal finds out: LostError, Expired or
//	                                   TakenOver
//	the process is killed              the lock ends by its TTL
//	the process is paused too long     on waking the context ends: LostError, Expired
//	a handler hangs                    the lease is renewed until Config.MaxHold
//	the Locker is closed               contexts end: ErrClosed
//
// A new name in a context that carries another lock is tried once and then busy,
// never waited for: two holders that wait for each other would wait for ever.
package reentrant
