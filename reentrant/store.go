package reentrant

import (
	"context"
	"time"
)

// A Store keeps locks for a [Locker]: it is where owners exclude each other.
// Package locktest is its contract.
//
// Each method serves a slice and answers for each element, in order. An error is
// about that element alone and means that the outcome is not known, unless the
// server refused to do anything (see [Refused]). Every call may take effect twice, or
// late, and must be harmless then. Methods are called concurrently.
type Store interface {
	// Acquire takes locks, or enters them deeper.
	Acquire(ctx context.Context, reqs []AcquireRequest) []AcquireReply

	// Renew makes leases last for another TTL.
	Renew(ctx context.Context, reqs []RenewRequest) []HoldReply

	// Release leaves holds. A lock that is left with the last one is handed to
	// the owner whose seat is the oldest, if there is one.
	Release(ctx context.Context, reqs []ReleaseRequest) []HoldReply

	// Listen calls woken for each lock that is handed to an owner of this client:
	// one whose name begins with client and a dot. It returns when that is so, and
	// goes on until stop is called, which waits for the last call of woken. Such
	// news may be lost, or late: see [AcquireReply].
	Listen(ctx context.Context, client string, woken func(Handover)) (stop func(), err error)

	// Group names the failure domain of a lock. Locks of one group share round
	// trips, and no others do.
	Group(name string) string
}

// An AcquireRequest asks for a lock.
type AcquireRequest struct {
	Name  string
	Owner string // fresh for each outermost hold
	Depth int    // wanted: 1 takes the lock, more enters it once more
	TTL   time.Duration

	// Seat is how long the owner's place in the queue is kept if the lock is busy;
	// 0 takes none. Asking again keeps the place.
	Seat time.Duration

	// FenceAtLeast is a lower bound of the next fence of this lock, whoever gets it.
	FenceAtLeast int64
}

// An AcquireReply answers an [AcquireRequest].
type AcquireReply struct {
	Answer Answer
	Left   time.Duration // if Busy: of the lease in the way, 0 if not known
	Err    error         // if Unknown

	// Fence is that of the grant, if Held. If Busy, and the owner has a seat, every grant
	// of this lock so far has this fence or a lower one, and every later one a higher: so
	// news can be told from old news. 0 if that is not known: then news is a reason to
	// ask, and no more.
	Fence int64
}

// A RenewRequest asks to renew one grant of a lock.
type RenewRequest struct {
	Name  string
	Owner string
	Fence int64
	TTL   time.Duration
}

// A ReleaseRequest gives back a hold.
type ReleaseRequest struct {
	Name   string
	Owner  string
	Leave  int           // the depth to leave behind; 0 frees the lock at any depth
	TTL    time.Duration // of what stays
	GiveUp bool          // the owner's place in the queue as well
}

// A HoldReply says who held the lock that was to be renewed or released: the owner
// (Held), another (Busy), nobody (Gone).
type HoldReply struct {
	Answer Answer
	Err    error // if Unknown
}

// A Handover is the news that a lock was given to an owner that waited.
type Handover struct {
	Name  string
	Owner string
	Fence int64
}

// HandoverTTL is the longest time for which a store may hand a lock to an owner
// that waits: it may be dead. The owner renews it to its full TTL.
const HandoverTTL = 3 * time.Second

// An Answer of a store about one lock.
type Answer int

const (
	Unknown Answer = iota // no answer
	Held                  // by the owner that asked
	Busy                  // held by, or kept for, another owner
	Gone                  // held by nobody; of a deeper hold: not by this owner
)
