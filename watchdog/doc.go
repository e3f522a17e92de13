// Package watchdog keeps many leases alive with few calls, and says in time when
// one may be over. It knows neither Redis nor locks: it is told how to renew,
// and tells a holder when to stop.
//
// # What it promises
//
//   - A [Holder] is told once, before the server can give its lease away: trust
//     in a lease ends at TTL minus a margin, counted on the monotonic clock from
//     the moment before the request was sent that got or renewed it. The timer
//     that ends it is apart from the renewals, so a call that hangs cannot keep
//     a lease alive.
//   - A held lease is renewed each third of its TTL, so that two renewals in a
//     row may fail before it is lost. A renewal without an answer is repeated
//     within what is left of the trust.
//   - After [Lease.End] no renewal of that lease is sent, and no answer of one
//     that is under way counts.
//   - Leases of one group (a server, a shard) are renewed apart from those of
//     others: a group that does not answer delays nobody else.
//
// It does not promise that a holder which is told also stops.
//
// # States
//
// A lease is new, held, or ended, in this order and never back. [Lease.Grant]
// makes it held; [Lease.End] (by the holder), a verdict that it is gone, the end
// of its trust, its maximum hold time and [Watchdog.Close] make it ended,
// whichever comes first.
//
// # Cost
//
// There is no goroutine per lease and none at all between two renewals: a heap
// orders the leases by the time of their next renewal, one timer waits for the
// first of them, and what is due within a hundredth of the period goes out in calls
// of up to a hundred leases, at most [Config.Flights] of them at once per group.
// Leases that were granted together are spread over a quarter of the first period, so
// the server sees a trickle.
package watchdog
