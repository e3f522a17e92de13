package demo

import (
	"reflect"
	"testing"

	"github.com/onceward/onceward/examples/orders/service"
)

func TestCopies(t *testing.T) {
	const orders, partitions = 1000, 6
	three := 0
	perPartition := map[int32]int{}
	for order := range int64(orders) {
		e := service.Event{Kind: service.Timeout, Order: order + 1, Deadline: 7}
		to := copies(1, e, partitions)
		if again := copies(1, e, partitions); !reflect.DeepEqual(to, again) {
			t.Fatalf("order %d goes to %v, then to %v", e.Order, to, again)
		}
		if len(to) != 2 && len(to) != 3 {
			t.Fatalf("order %d has %d copies, want 2 or 3", e.Order, len(to))
		}
		if to[0].retry || !to[1].retry {
			t.Fatalf("order %d goes to %v, want the first copy to one topic and the second to the other", e.Order, to)
		}
		three += len(to) - 2
		for _, to := range to {
			if to.partition < 0 || to.partition >= partitions {
				t.Fatalf("order %d goes to partition %d of %d", e.Order, to.partition, partitions)
			}
			perPartition[to.partition]++
		}
	}
	if three < orders/3 || three > 2*orders/3 {
		t.Errorf("%d of %d events have three copies, want about half", three, orders)
	}
	for p, n := range perPartition {
		if n < orders*2/partitions/2 {
			t.Errorf("partition %d has %d records, want about an equal share", p, n)
		}
	}
	e := service.Event{Kind: service.Timeout, Order: 1, Deadline: 7}
	differ := false
	for seed := range uint64(20) {
		differ = differ || !reflect.DeepEqual(copies(seed, e, partitions), copies(1, e, partitions))
	}
	if !differ {
		t.Error("the seed makes no difference")
	}
}

func TestNewPlan(t *testing.T) {
	for _, orders := range []int{MinOrders, 300, 3000, 10_001} {
		p := newPlan(orders)
		seen := map[int64]bool{}
		for _, id := range append(append(append([]int64{p.late, p.killed}, p.pause...), p.wave1...), p.wave2...) {
			if seen[id] {
				t.Errorf("%d orders: order %d has two parts", orders, id)
			}
			seen[id] = true
		}
		if len(seen) != orders {
			t.Errorf("%d orders: %d have a part", orders, len(seen))
		}
		if len(p.wave2) == 0 {
			t.Errorf("%d orders: none is left to be announced by the instance that is killed", orders)
		}
	}
}
