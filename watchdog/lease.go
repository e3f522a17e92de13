package watchdog

import (
	"fmt"
	"time"
)

// A Reason says why a lease ended without its holder asking for it.
type Reason int

const (
	// Expired: the trust ran out with no renewal refused or unanswered (the
	// process was paused, or the lease is not renewed), or the server said that
	// the lease is over.
	Expired Reason = iota + 1
	// TakenOver: somebody else has the lease.
	TakenOver
	// Unreachable: renewals got no answer for as long as the trust lasted.
	Unreachable
	// TooLong: the maximum hold time was over.
	TooLong
	// Closed: the watchdog was closed.
	Closed
)

func (r Reason) String() string {
	switch r {
	case Expired:
		return "expired"
	case TakenOver:
		return "taken over"
	case Unreachable:
		return "server unreachable"
	case TooLong:
		return "held too long"
	case Closed:
		return "shut down"
	}
	return fmt.Sprintf("Reason(%d)", int(r))
}

// A Holder is told that its lease must no longer be relied on.
type Holder interface {
	// Lost is called at most once, never after [Lease.End] returned true, from a
	// goroutine of its own.
	Lost(Reason)
}

type state uint8

const (
	fresh state = iota
	held
	ended
)

// A Lease is one lease under the care of a [Watchdog]. It is made before the
// request for it is sent, so that its end and its start cannot pass each other.
// All methods are safe for concurrent use.
type Lease struct {
	w      *Watchdog
	holder Holder
	group  string
	ttl    time.Duration

	// Guarded by w.mu. Times are durations since w.epoch, on the monotonic clock.
	state    state
	doubtful bool          // the latest renewal got no answer
	last     time.Duration // the end of the maximum hold time, or 0
	places   [2]place      // in the queues: when it is due for renewal, when its trust ends
}

// A place is where a lease stands in a queue.
type place struct {
	at    time.Duration
	index int // -1: not in it
}

// Init makes l a new lease of w. The holder may embed it. Leases of one group are
// renewed together.
func (l *Lease) Init(w *Watchdog, group string, ttl time.Duration, h Holder) {
	*l = Lease{w: w, holder: h, group: group, ttl: ttl, places: [2]place{{index: -1}, {index: -1}}}
}

// Holder returns the holder given to [Lease.Init].
func (l *Lease) Holder() Holder { return l.holder }

// TTL returns the length of the lease.
func (l *Lease) TTL() time.Duration { return l.ttl }

// Terms are those of one grant.
type Terms struct {
	// Sent is the moment before the request was sent that was granted.
	Sent time.Time
	// For is how long the server keeps the lease until its first renewal, when that is
	// less than its TTL.
	//
	// Defaults to the TTL of the lease.
	For time.Duration
	// Fixed is true for a lease that is not to be renewed.
	Fixed bool
	// MaxHold ends the lease at that time after Sent, however often it was
	// renewed. 0 means never.
	MaxHold time.Duration
}

// Grant says that the lease was given. It reports whether the lease is held now:
// not if it ended in between, or if its trust is already over.
func (l *Lease) Grant(t Terms) bool { return l.w.grant(l, t) }

// End takes the lease back from the watchdog, on behalf of its holder. It
// reports whether the lease was held until now.
func (l *Lease) End() bool {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	return l.w.retire(l) == held
}

// Remaining returns how long the lease can still be relied on, without a further
// renewal. It is 0 for a lease that is not held.
func (l *Lease) Remaining() time.Duration {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	if l.state != held {
		return 0
	}
	return max(0, l.places[end].at-l.w.now())
}
