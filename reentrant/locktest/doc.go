// Package locktest is the contract of a lock store: what a [reentrant.Store] must do,
// whatever keeps the locks, so that a [reentrant.Locker] on top of it keeps its promise.
//
//	func TestStore(t *testing.T) {
//		locktest.Run(t, func(t *testing.T) reentrant.Store {
//			return newStore(t) // empty, for this test alone
//		})
//	}
//
// Each check has a sentence that says what it proves, printed when it fails. The checks
// say nothing false about a good store on a slow machine: a step counts only if it
// was made in time to mean something, else it is made again.
//
// They take real time, since a store's clock is its own: about three seconds in all.
// A store should pass them with the race detector on.
package locktest
