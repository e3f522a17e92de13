// Lock measures the lock against other Redis locks for Go, and against what Redis
// and a plain client can do at all, on a real Redis of its own.
//
//	go run ./lock              all of it, about five minutes
//	go run ./lock -quick       a look at everything, under a minute; its targets are named "quick:..."
//	go run ./lock -run 'calls|batch'
//	go run ./lock -json        one JSON object per line
//
// It prints a line for each target (see package compare), and goes on if one is missed.
//
// What is compared, and why it is fair:
//
//   - raw: SET NX PX and a script that deletes the key if it still has the owner's
//     value. Not a lock that anybody should use (no renewal, no re-entry, no
//     fence, no waiting), but the least that two round trips can cost.
//   - redsync and redislock with their defaults. Where somebody waits, redislock
//     tries again each 10 ms, since by default it does not wait at all.
//   - rueidislock with KeyMajority 1: its default of 2 takes three keys for each
//     lock, of use with several servers only, and costs more than twice as much.
//
// All but rueidislock, which brings its own client, use go-redis with the same
// options. Each caller has lock names of its own where nobody is to wait, and all go
// through the same few hundred names, so that the keys come and go as they do in
// real work. Every library gets contexts that can be cancelled.
package main
