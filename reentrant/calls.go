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
// goes with the next. There is no timer, so nobody waits for company.
type calls[Q, R any] struct {
	send func([]Q) []R

	mu     sync.Mutex // guards queues, and what is in them
	queues map[string]*callQueue[Q, R]
	spare  *callQueue[Q, R] // one that was emptied, for the next group

	free    sync.Pool // of calls
	flights sync.Pool
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

// A flight is what one round trip carries.
type flight[Q, R any] struct {
	calls []*call[Q, R]
	reqs  []Q
}

func newCalls[Q, R any](send func([]Q) []R) *calls[Q, R] {
	return &calls[Q, R]{
		send:    send,
		queues:  map[string]*callQueue[Q, R]{},
		free:    sync.Pool{New: func() any { return &call[Q, R]{answered: make(chan struct{}, 1)} }},
		flights: sync.Pool{New: func() any { return &flight[Q, R]{} }},
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
		q, c.spare = c.spare, nil
		if q == nil {
			q = &callQueue[Q, R]{}
		}
		c.queues[group] = q
	}
	q.waiting = append(q.waiting, cl)
	start := q.flights < maxFlights
	if start {
		q.flights++
	}
	c.mu.Unlock()
	switch {
	case start && ctx.Done() == nil:
		// This caller stays until it is answered, so it may as well fly itself.
		if c.fly(group, q) {
			go c.flyOn(group, q)
		}
	case start:
		go c.flyOn(group, q)
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

// flyOn makes flight after flight until nothing is left in q.
func (c *calls[Q, R]) flyOn(group string, q *callQueue[Q, R]) {
	for c.fly(group, q) {
	}
}

// fly carries what waits in q, as much as one flight may. It reports whether another
// flight is needed in its place.
func (c *calls[Q, R]) fly(group string, q *callQueue[Q, R]) (again bool) {
	f := c.flights.Get().(*flight[Q, R])
	c.mu.Lock()
	n := min(len(q.waiting), maxPerFlight)
	f.calls = append(f.calls, q.waiting[:n]...)
	for _, cl := range f.calls {
		f.reqs = append(f.reqs, cl.req)
	}
	rest := copy(q.waiting, q.waiting[n:])
	clear(q.waiting[rest:])
	q.waiting = q.waiting[:rest]
	c.mu.Unlock()

	var replies []R
	if n > 0 { // else another flight took it all
		replies = c.send(f.reqs)
	}

	c.mu.Lock()
	for i, cl := range f.calls {
		if cl.late != nil {
			go cl.late(replies[i])
			continue
		}
		cl.reply = replies[i]
		cl.answered <- struct{}{}
	}
	again = len(q.waiting) > 0
	if !again {
		if q.flights--; q.flights == 0 {
			delete(c.queues, group) // names come and go, and so may groups
			c.spare = q
		}
	}
	c.mu.Unlock()
	clear(f.calls)
	clear(f.reqs)
	f.calls, f.reqs = f.calls[:0], f.reqs[:0]
	c.flights.Put(f)
	return again
}
