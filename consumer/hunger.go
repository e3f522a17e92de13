package consumer

import (
	"context"
	"time"
)

// low is how many ready lanes are enough for now: a full round of batches.
func (d *dispatcher) low() int { return d.cfg.Workers * d.cfg.BatchMax }

// patience is how long the poll loop waits for a full window to get room before
// it polls all the same, and pauses what is still full. Pausing costs: the client
// throws away what it has buffered, and asks for it again only when the fetch
// that is under way has returned.
const patience = 100 * time.Millisecond

// waitHungry waits until the workers could use more records and there is room for
// them, or ctx ends.
func (d *dispatcher) waitHungry(ctx context.Context) {
	var full *time.Timer // since when only a full window is in the way
	for {
		d.mu.Lock()
		enough := d.ready >= d.low()
		room := !d.anyFull()
		d.mu.Unlock()
		var over <-chan time.Time
		switch {
		case enough:
		case room:
			return
		default:
			if full == nil {
				full = time.NewTimer(patience)
				defer full.Stop()
			}
			over = full.C
		}
		select {
		case <-d.hungry:
		case <-over:
			return
		case <-ctx.Done():
			return
		}
	}
}

// anyFull reports whether a window is full of a partition that is fetched.
func (d *dispatcher) anyFull() bool {
	for _, p := range d.parts {
		if p.state == owned && !p.paused && p.full(d.cfg.Window, d.cfg.WindowBytes, 2) {
			return true
		}
	}
	return false
}

// feed lets the poll loop look again if there is not enough ready any more. It is
// called wherever that number, or what is in a window, can have sunk.
func (d *dispatcher) feed() {
	if d.ready >= d.low() {
		return
	}
	select {
	case d.hungry <- struct{}{}:
	default:
	}
}

// pausedNow reports whether the partition of p is to be paused, whoever has it.
func (d *dispatcher) pausedNow(p *part) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.parts[partID{p.topic, p.num}]
	return now != nil && now.paused
}
