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
// # Waiting
//
// Acquire waits in a queue that all processes share. Each process has one seat in
// it per lock, renewed about once a second; inside a process callers wait in the order
// of their calls. Release hands the lock to the oldest seat in the same script, for
// 3 s at most, and tells that process, which holds it from then on and makes it last in
// full by a renewal within a second. Old news is told from new by its fence. If the
// news is lost the next question finds out; if the process is dead, the next
// one is served when the handover has ended. A lock that ends by its TTL goes to the
// oldest seat at its next question. Nobody jumps the queue.
//
// A new name in a context that carries another lock is tried once and then busy,
// never waited for: two holders that wait for each other would wait for ever.
// [Locker.AcquireAll] takes several in one order.
//
// # What it needs
//
// Redis 6.2 or newer, or what speaks like it, as a single server, behind Sentinel or as
// a cluster, with scripts (EVAL, EVALSHA) that may use TIME. Keys are one hash per
// lock, which lives for the TTL; one hash per lock that is waited for; one counter per
// shard and one hash of settings, which stay. See keys.go for their names.
//
// A user that may do no more than this is enough, for the prefix "onceward" (the last
// line is for List; a cluster needs +cluster|slots +command on every node as well):
//
//	ACL SETUSER onceward on >SECRET resetkeys ~onceward:* resetchannels &onceward:wake:* nocommands
//		+evalsha +eval +time +get +set +del +exists +pttl +pexpire
//		+hget +hmget +hset +hsetnx +hdel +hincrby +hgetall
//		+subscribe +publish +ping
//		+scan
//
// All processes under one prefix must have the same number of shards and the same
// layout, which changes only with incompatible scripts: the first Acquire compares
// them in Redis, and a process that differs is refused ([DisagreementError]). So a
// rolling upgrade to a version with the same layout needs nothing; for another layout
// stop all old processes first, or choose another prefix.
package reentrant
