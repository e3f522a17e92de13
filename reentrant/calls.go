package reentrant

import (
	"context"
	"sync"
)

const (
	// maxFlights is how many round trips of one kind a group may have under way for
	// single callers: a second one, so that a connection that hangs does not
	// hold up everybody.
	maxFlights = 2
	// maxPerFlight bounds what one round trip carries.
	maxPerFlight = 128
)

// calls lets single callers share round trips: what arrives while a flight is out
// goes with the next. There is no timer, so nobody waits for company, and a single
// caller pays for a goroutine that starts at once.
type calls[Q, R any] struct {
	send func([]Q) []R

	mu     sync.Mutex // guards queues, and what is in them
	queues map[string]*callQueue[Q, R]
	free   sync.Pool
}

// A callQueue is what waits for one group.
type callQueue[Q, R any] struct {
	waiting []*call[Q, R]
	flights int
}

type call[Q, R any] struct {
	req      Q
	reply    R
	answered chan struct{} // of size 1: the flight never waits for a caller
	late     func(R)       // set once the caller is gone
}

func newCalls[Q, R any](send func([]Q) []R) *calls[Q, R] {
	return &calls[Q, R]{
		send:   send,
		queues: map[string]*callQueue[Q, R]{},
		free:   sync.Pool{New: func() any { return &call[Q, R]{answered: make(chan struct{}, 1)} }},
	}
}

// do sends a request and returns its reply. If ctx ends first it returns the
// cause at once; the reply then goes to late, on another goroutine.
func (c *calls[Q, R]) do(ctx context.Context, group string, req Q, late func(R)) (R, error) {
	cl := c.free.Get().(*call[Q, R])
	cl.req, cl.late = req, nil
	c.mu.Lock()
	q := c.queues[group]
	if q == nil {
		q = &callQueue[Q, R]{}
		c.queues[group] = q
	}
	q.waiting = append(q.waiting, cl)
	start := q.flights < maxFlights
	if start {
		q.flights++
	}
	c.mu.Unlock()
	if start {
		go c.fly(group, q)
	}
	select {
	case <-cl.answered:
	case <-ctx.Done():
		c.mu.Lock()
		select {
		case <-cl.answered: // after all
			c.mu.Unlock()
		default:
			cl.late = late
			c.mu.Unlock()
			var none R
			return none, context.Cause(ctx)
		}
	}
	reply := cl.reply
	var none Q
	cl.req = none
	c.free.Put(cl)
	return reply, nil
}

// fly carries what waits in q, flight after flight, until nothing is left.
func (c *calls[Q, R]) fly(group string, q *callQueue[Q, R]) {
	var reqs []Q
	var batch []*call[Q, R]
	for {
		c.mu.Lock()
		n := min(len(q.waiting), maxPerFlight)
		if n == 0 {
			if q.flights--; q.flights == 0 {
				delete(c.queues, group) // names come and go, and so may groups
			}
			c.mu.Unlock()
			return
		}
		batch = append(batch[:0], q.waiting[:n]...)
		q.waiting = append(q.waiting[:0], q.waiting[n:]...)
		c.mu.Unlock()

		reqs = reqs[:0]
		for _, cl := range batch {
			reqs = append(reqs, cl.req)
		}
		replies := c.send(reqs)
		c.mu.Lock()
		for i, cl := range batch {
			if cl.late != nil {
				go cl.late(replies[i])
				continue
			}
			cl.reply = replies[i]
			cl.answered <- struct{}{}
		}
		c.mu.Unlock()
	}
}
