package watchdog

import (
	"container/heap"
	"time"
)

// The queues of a watchdog, and the places of a lease in them.
const (
	due = 0 // by when a lease is to be renewed
	end = 1 // by when the trust in it ends
)

// A queue orders leases by one of their places, the earliest first. It is a heap
// of pointers into which each lease knows its way, so it costs a held lease 16
// bytes, and no timer of its own.
type queue struct {
	which  int
	leases []*Lease
}

// first returns the time of the earliest lease.
func (q *queue) first() (time.Duration, bool) {
	if len(q.leases) == 0 {
		return 0, false
	}
	return q.leases[0].places[q.which].at, true
}

// put adds l, or moves it, to its place at that time.
func (q *queue) put(l *Lease, at time.Duration) {
	p := &l.places[q.which]
	p.at = at
	if p.index < 0 {
		heap.Push((*byTime)(q), l)
	} else {
		heap.Fix((*byTime)(q), p.index)
	}
}

// remove takes l out, if it is in.
func (q *queue) remove(l *Lease) {
	if i := l.places[q.which].index; i >= 0 {
		heap.Remove((*byTime)(q), i)
	}
}

// byTime is the [heap.Interface] of a queue.
type byTime queue

func (q *byTime) Len() int { return len(q.leases) }

func (q *byTime) Less(i, j int) bool {
	return q.leases[i].places[q.which].at < q.leases[j].places[q.which].at
}

func (q *byTime) Swap(i, j int) {
	q.leases[i], q.leases[j] = q.leases[j], q.leases[i]
	q.leases[i].places[q.which].index, q.leases[j].places[q.which].index = i, j
}

func (q *byTime) Push(x any) {
	l := x.(*Lease)
	l.places[q.which].index = len(q.leases)
	q.leases = append(q.leases, l)
}

func (q *byTime) Pop() any {
	last := len(q.leases) - 1
	l := q.leases[last]
	q.leases[last] = nil
	q.leases = q.leases[:last]
	l.places[q.which].index = -1
	return l
}
