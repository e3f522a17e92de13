package consumer

// A queue is first in, first out. Its zero value is empty. It keeps its memory,
// but nothing that was popped.
type queue[T any] struct {
	elems []T
	head  int
}

func (q *queue[T]) len() int { return len(q.elems) - q.head }

func (q *queue[T]) push(v T) {
	// Move to the front rather than grow once half of the memory is behind the
	// head: each element moves at most once per doubling.
	if len(q.elems) == cap(q.elems) && q.head > len(q.elems)/2 {
		n := copy(q.elems, q.elems[q.head:])
		clear(q.elems[n:])
		q.elems, q.head = q.elems[:n], 0
	}
	q.elems = append(q.elems, v)
}

// peek returns the oldest element. The queue must not be empty.
func (q *queue[T]) peek() T { return q.elems[q.head] }

// pop removes the oldest element and returns it. The queue must not be empty.
func (q *queue[T]) pop() T {
	var zero T
	v := q.elems[q.head]
	q.elems[q.head] = zero
	q.head++
	if q.head == len(q.elems) {
		q.elems, q.head = q.elems[:0], 0
	}
	return v
}

// all returns the elements, oldest first, until the next push or pop.
func (q *queue[T]) all() []T { return q.elems[q.head:] }

// keep drops the elements for which keep is false.
func (q *queue[T]) keep(keep func(T) bool) {
	n := 0
	rest := q.all()
	for _, v := range rest {
		if keep(v) {
			rest[n] = v
			n++
		}
	}
	clear(rest[n:])
	q.elems = q.elems[:q.head+n]
	if n == 0 {
		q.elems, q.head = q.elems[:0], 0
	}
}
