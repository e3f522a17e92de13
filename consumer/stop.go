package consumer

import (
	"cmp"
	"slices"
)

// stop is what happens to a message that can never succeed: it is never skipped.
// Its lane stops, so that no later message of its key overtakes it; the lanes of
// other keys go on until the window of the partition is full. The lane starts
// again only if the partition is taken away; the next owner meets the message
// anew.
func (d *dispatcher) stop(l *lane, it *item, err error) *MessageError {
	l.state = stopped
	l.stuck = it.failed(err)
	d.stuck[l] = struct{}{}
	return l.stuck
}

// stopUnidentified stops records that have no key: each gets a lane of its own.
func (d *dispatcher) stopUnidentified(items []*item, errs []error) (dead []*MessageError) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, it := range items {
		if it.part.state != owned {
			continue
		}
		it.lane = new(lane)
		it.lane.items.push(it)
		dead = append(dead, d.stop(it.lane, it, errs[i]))
	}
	return dead
}

// stoppedLanes returns why lanes are stopped, in a fixed order.
func (d *dispatcher) stoppedLanes() []*MessageError {
	d.mu.Lock()
	defer d.mu.Unlock()
	var es []*MessageError
	for l := range d.stuck {
		es = append(es, l.stuck)
	}
	slices.SortFunc(es, func(a, b *MessageError) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Offset, b.Offset))
	})
	return es
}
