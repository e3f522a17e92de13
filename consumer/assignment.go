package consumer

import (
	"fmt"
	"maps"
	"slices"
)

// assign makes parts for partitions that this member got. It also stamps those
// that it has kept: a member that was thrown out and joined again under another
// ID keeps partitions without any other sign.
func (d *dispatcher) assign(m map[string][]int32, member string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.parts {
		p.member = member
	}
	if d.closed {
		return
	}
	// What is assigned once more without having been taken away is fetched anew.
	for _, p := range d.disownLocked(m, lost) {
		p.state = gone
	}
	for topic, nums := range m {
		for _, num := range nums {
			d.parts[partID{topic, num}] = newPart(topic, num, member)
		}
	}
}

// current returns all parts that are not released.
func (d *dispatcher) current() []*part {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Values(d.parts))
}

// all returns the partitions of all parts.
func (d *dispatcher) all() map[string][]int32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := make(map[string][]int32)
	for id := range d.parts {
		m[id.topic] = append(m[id.topic], id.num)
	}
	return m
}

// disown returns the parts of the given partitions, of which nothing starts any
// more, with the number of records that were undecided and in flight. Parts that
// are being disowned by somebody else are among them.
func (d *dispatcher) disown(m map[string][]int32, to ownership) (parts []*part, undecided, inflight int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	parts = d.disownLocked(m, to)
	for _, p := range parts {
		undecided += p.undecided
		inflight += p.inflight
	}
	return parts, undecided, inflight
}

func (d *dispatcher) disownLocked(m map[string][]int32, to ownership) (parts []*part) {
	lanes := make(map[*lane]struct{})
	for topic, nums := range m {
		for _, num := range nums {
			p := d.parts[partID{topic, num}]
			if p == nil {
				continue
			}
			parts = append(parts, p)
			if p.state == owned {
				for _, it := range p.items.all() {
					if it.lane != nil && !it.done {
						lanes[it.lane] = struct{}{}
					}
				}
			}
			p.disown(to)
		}
	}
	d.purge(lanes)
	return parts
}

// purge takes what is not owned out of lanes, but for what is with a handler.
func (d *dispatcher) purge(lanes map[*lane]struct{}) {
	var moved []*lane
	for l := range lanes {
		head := l.items.peek()
		l.items.keep(func(it *item) bool {
			return it.part.state == owned || l.state == running && it == head
		})
		if l.state == running || l.items.len() > 0 && l.items.peek() == head {
			continue
		}
		if l.state == parked {
			l.timer.Stop()
		}
		if l.state == stopped {
			l.stuck = nil
			delete(d.stuck, l)
		}
		l.state = idle
		moved = append(moved, l)
	}
	// Lanes with another head may belong to another route now.
	d.ready = 0
	for _, r := range d.routes {
		for _, q := range []*queue[*lane]{&r.ready, &r.alone} {
			q.keep(func(l *lane) bool { return l.state == ready })
			d.ready += q.len()
		}
	}
	for _, l := range moved {
		d.advance(l)
	}
	d.wake(len(moved))
	d.feed()
}

// interrupt ends the contexts of the batches that hold something of the parts.
func (d *dispatcher) interrupt(parts []*part, cause error) {
	d.mu.Lock()
	member := make(map[*part]bool, len(parts))
	for _, p := range parts {
		member[p] = true
	}
	var bs []*batch
	for b := range d.running {
		for _, it := range b.items {
			if member[it.part] {
				bs = append(bs, b)
				break
			}
		}
	}
	d.mu.Unlock()
	for _, b := range bs {
		b.cancel(cause)
	}
}

// release forgets parts. It returns how much of them is still in flight.
func (d *dispatcher) release(parts []*part) (abandoned int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range parts {
		abandoned += p.inflight
		p.disown(gone)
		p.items, p.paused = queue[*item]{}, false
		if id := (partID{p.topic, p.num}); d.parts[id] == p {
			delete(d.parts, id)
		}
	}
	return abandoned
}

// close lets no further batch start. It may be called more than once.
func (d *dispatcher) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	for _, l := range d.lanes {
		if l.state == parked {
			l.timer.Stop()
		}
	}
	d.work.Broadcast()
}

// inHandlers describes what is with handlers.
func (d *dispatcher) inHandlers() (errs []error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for b := range d.running {
		for i, it := range b.items {
			errs = append(errs, fmt.Errorf("%s/%d offset %d, key %q", it.part.topic, it.part.num, it.offset, b.msgs[i].Key))
		}
	}
	return errs
}
