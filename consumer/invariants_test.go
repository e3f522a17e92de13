package consumer

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward/middleware"
)

// TestDispatcher_Invariants drives the dispatcher at random and looks after every
// step whether anything that must always hold does not.
func TestDispatcher_Invariants(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) { driveAtRandom(t, rand.New(rand.NewPCG(seed, 1))) })
	}
}

func driveAtRandom(t *testing.T, rnd *rand.Rand) {
	d := newDesk(t, func(c *Config) { c.BatchMax = 5 })
	parts := []partID{{"t", 0}, {"t", 1}, {"u", 0}}
	offsets := make(map[partID]int64) // fetched
	decided := make(map[*item]bool)
	all := make(map[*part][]*item)
	running := make(map[string]bool) // by key
	var batches []*batch
	verdicts := []error{nil, nil, nil, errors.New("no"), middleware.Busy(0, errors.New("held")), middleware.Permanent(errors.New("no"))}
	finish := func(err func() error) {
		if len(batches) == 0 {
			return
		}
		i := rnd.IntN(len(batches))
		b := batches[i]
		batches = slices.Delete(batches, i, i+1)
		vs := make([]verdict, len(b.items))
		for i, it := range b.items {
			vs[i] = d.cfg.judge(it, err(), false)
			decided[it] = vs[i].class == middleware.Decided
			delete(running, it.msg.Key)
		}
		d.finish(b, vs, time.Millisecond)
	}
	for range 3000 {
		id := parts[rnd.IntN(len(parts))]
		one := map[string][]int32{id.topic: {id.num}}
		p := d.owner(id.topic, id.num)
		switch rnd.IntN(10) {
		case 0, 1, 2:
			if p == nil {
				continue
			}
			keys := make(map[int64]string)
			for range rnd.IntN(6) {
				keys[offsets[id]] = fmt.Sprint("k", rnd.IntN(8))
				if rnd.IntN(20) == 0 {
					keys[offsets[id]] = []string{"", "control"}[rnd.IntN(2)]
				}
				offsets[id] += 1 + rnd.Int64N(3)
			}
			all[p] = append(all[p], d.put(id.topic, id.num, keys)...)
		case 3, 4, 5:
			if d.readyLanes() == 0 {
				continue
			}
			b := d.next()
			batches = append(batches, b)
			for _, it := range b.items {
				if it.part.state != owned {
					t.Fatal("started an item of a part that is not owned")
				}
				if running[it.msg.Key] {
					t.Fatalf("two items of key %s at once", it.msg.Key)
				}
				running[it.msg.Key] = true
				for _, earlier := range all[it.part] {
					if earlier == it {
						break
					}
					if !decided[earlier] && earlier.msg != nil && earlier.msg.Key == it.msg.Key {
						t.Fatalf("offset %d of key %s started before %d", it.offset, it.msg.Key, earlier.offset)
					}
				}
			}
		case 6, 7:
			finish(func() error { return verdicts[rnd.IntN(len(verdicts))] })
		case 8:
			time.Sleep(time.Second)
			synctest.Wait()
		case 9:
			if rnd.IntN(5) > 0 {
				continue
			}
			if p == nil {
				offsets[id] = 0
				d.assign(one, "m1")
				continue
			}
			gone, _, _ := d.disown(one, []ownership{revoked, lost}[rnd.IntN(2)])
			d.release(gone)
		}
		check(t, d, all)
	}
	for len(batches) > 0 {
		finish(func() error { return nil })
		check(t, d, all)
	}
	gone, _, _ := d.disown(d.all(), revoked)
	d.release(gone)
	d.wantEmpty()
}

// check looks at what must hold between any two steps.
func check(t *testing.T, d *desk, all map[*part][]*item) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.parts {
		undecided, bytes := 0, int64(0)
		first := int64(-1)
		for _, it := range all[p] {
			if !it.done {
				undecided++
				if first < 0 {
					first = it.offset
				}
			}
		}
		for _, it := range p.items.all() {
			bytes += it.bytes
		}
		if first >= 0 && p.next.Offset > first {
			t.Fatalf("offset %d would be committed, %d is undecided", p.next.Offset, first)
		}
		if first < 0 && len(all[p]) > 0 && p.next.Offset != all[p][len(all[p])-1].offset+1 {
			t.Fatalf("next = %d though all is decided", p.next.Offset)
		}
		if p.undecided != undecided || p.bytes != bytes {
			t.Fatalf("counted %d undecided and %d bytes, are %d and %d", p.undecided, p.bytes, undecided, bytes)
		}
	}
	waiting := make(map[laneState]int)
	for key, l := range d.lanes {
		waiting[l.state]++
		if l.items.len() == 0 || l.state == idle {
			t.Fatalf("lane %s has %d items in state %d", key, l.items.len(), l.state)
		}
		for i, it := range l.items.all() {
			if it.part.state != owned && (i > 0 || l.state != running) || it.done {
				t.Fatalf("lane %s in state %d holds item %d, done %t, of a part in state %d", key, l.state, i, it.done, it.part.state)
			}
		}
	}
	queued, inflight := 0, 0
	for _, r := range d.routes {
		queued += r.ready.len() + r.alone.len()
	}
	for b := range d.running {
		inflight += len(b.items)
	}
	if d.ready != queued || queued != waiting[ready] || inflight != waiting[running] {
		t.Fatalf("ready %d, queued %d, in flight %d, lanes by state %v", d.ready, queued, inflight, waiting)
	}
}
