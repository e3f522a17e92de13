package consumer

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func TestQueue_LikeASlice(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	var q queue[*int]
	var want []*int
	for i := range 20000 {
		switch op := rnd.IntN(100); {
		case op < 50:
			q.push(&i)
			want = append(want, &i)
		case op < 99 && len(want) > 0:
			if q.peek() != want[0] || q.pop() != want[0] {
				t.Fatal("peek or pop is not the oldest")
			}
			want = want[1:]
		case op == 99:
			odd := func(p *int) bool { return *p%2 == 1 }
			q.keep(odd)
			want = slices.DeleteFunc(slices.Clone(want), func(p *int) bool { return !odd(p) })
		}
		if q.len() != len(want) || !slices.Equal(q.all(), want) {
			t.Fatalf("queue has %d elements, want %d", q.len(), len(want))
		}
		// What was popped must not be kept alive.
		for _, p := range q.elems[:q.head] {
			if p != nil {
				t.Fatal("a popped element is still referenced")
			}
		}
		for _, p := range q.elems[len(q.elems):cap(q.elems)] {
			if p != nil {
				t.Fatal("a removed element is still referenced")
			}
		}
	}
	if len(want) == 0 {
		t.Error("the queue was never long")
	}
}

func TestQueue_DoesNotGrowWithWhatPassesThrough(t *testing.T) {
	var q queue[int]
	for i := range 100 {
		q.push(i)
	}
	for i := range 100000 {
		q.push(i)
		q.pop()
	}
	if cap(q.elems) > 1000 {
		t.Errorf("capacity = %d for 100 elements", cap(q.elems))
	}
}
