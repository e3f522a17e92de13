package consumer

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/onceward/onceward/middleware"
	"github.com/twmb/franz-go/pkg/kgo"
)

// partID names a partition, but not an assignment of it.
type partID struct {
	topic string
	num   int32
}

// A dispatcher stands between the poll loop, the workers and the group: it knows
// which records are undecided, which keys are busy, and what may be committed.
// All of it changes under one mutex, which is taken once per poll and twice per
// batch, so that no two of these can disagree.
type dispatcher struct {
	cfg     Config
	base    context.Context // of all handlers: the dispatcher outlives no Run
	routes  []*route
	byTopic map[string]*route

	// hungry has a token when the poll loop should look again whether to poll.
	hungry chan struct{}

	mu      sync.Mutex // guards all below, and all fields of parts and lanes
	work    sync.Cond  // a lane got ready, or closed
	parts   map[partID]*part
	lanes   map[string]*lane
	stuck   map[*lane]struct{} // stopped ones
	running map[*batch]struct{}
	ready   int // lanes in the queues of the routes
	idle    int // workers that wait for a batch
	turn    int // route that is looked at first
	closed  bool
}

func newDispatcher(base context.Context, cfg Config, routes []Route) *dispatcher {
	d := &dispatcher{
		cfg:     cfg,
		base:    base,
		byTopic: make(map[string]*route),
		hungry:  make(chan struct{}, 1),
		parts:   make(map[partID]*part),
		lanes:   make(map[string]*lane),
		stuck:   make(map[*lane]struct{}),
		running: make(map[*batch]struct{}),
	}
	d.work.L = &d.mu
	for _, r := range routes {
		rt := &route{Route: r}
		d.routes = append(d.routes, rt)
		for _, topic := range r.Topics {
			d.byTopic[topic] = rt
		}
	}
	return d
}

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

// owner returns the part that records of a partition belong to now.
func (d *dispatcher) owner(topic string, num int32) *part {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.parts[partID{topic, num}]
}

// enqueue adds items to their part and to their lanes. It returns the items that
// can never be handled, and whether the part had been full before: then the
// workers are waiting for work that it does not let them have, and it is marked
// as paused.
func (d *dispatcher) enqueue(p *part, items []*item) (unidentified []*item, pause bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p.state != owned {
		return nil, false
	}
	if pause = p.full(d.cfg.Window, d.cfg.WindowBytes, 2); pause {
		p.paused = true
	}
	before := d.ready
	for _, it := range items {
		p.push(it)
		switch {
		case it.done: // a control record
			p.decide(it)
		case it.msg == nil:
			unidentified = append(unidentified, it)
		default:
			l := d.lanes[it.msg.Key]
			if l == nil {
				l = &lane{key: it.msg.Key}
				d.lanes[l.key] = l
			}
			it.lane = l
			l.items.push(it)
			if l.state == idle {
				d.makeReady(l)
			}
		}
	}
	d.wake(d.ready - before)
	return unidentified, pause
}

// wake wakes as many workers as n ready lanes can use.
func (d *dispatcher) wake(n int) {
	switch {
	case n <= 0 || d.idle == 0:
	case n == 1:
		d.work.Signal()
	default:
		d.work.Broadcast()
	}
}

// makeReady puts a lane with items into the queue of its head's route.
func (d *dispatcher) makeReady(l *lane) {
	l.state = ready
	r := l.items.peek().route
	if l.alone {
		r.alone.push(l)
	} else {
		r.ready.push(l)
	}
	d.ready++
}

// advance lets a lane go on behind the head that it had.
func (d *dispatcher) advance(l *lane) {
	l.state = idle
	if l.items.len() > 0 {
		d.makeReady(l)
	} else {
		delete(d.lanes, l.key)
	}
}

// take waits for ready lanes and starts a batch of them. It returns nil once the
// dispatcher is closed. An idle worker takes what is there: there is no waiting
// for a batch to fill.
func (d *dispatcher) take() *batch {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.idle++
	defer func() { d.idle-- }()
	for !d.closed && d.ready == 0 {
		d.work.Wait()
	}
	if d.closed {
		return nil
	}
	r := d.nextRoute()
	b := &batch{route: r}
	if r.alone.len() > 0 && (r.turn || r.ready.len() == 0) {
		r.turn = false
		d.start(b, r.alone.pop())
	} else {
		r.turn = true
		n := r.share(r.ready.len(), d.idle, d.cfg.BatchMax, d.cfg.BatchTime)
		b.items = make([]*item, 0, n)
		b.msgs = make([]*middleware.Message, 0, n)
		for range n {
			d.start(b, r.ready.pop())
		}
	}
	b.ctx, b.cancel = context.WithCancelCause(d.base)
	d.running[b] = struct{}{}
	d.feed()
	return b
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

// nextRoute returns a route with a ready lane, each in its turn.
func (d *dispatcher) nextRoute() *route {
	for {
		r := d.routes[d.turn%len(d.routes)]
		d.turn++
		if r.ready.len()+r.alone.len() > 0 {
			return r
		}
	}
}

// start gives the head of a ready lane to a batch. Its part is owned: disowning
// a part takes its items out of all lanes in the same critical section, so
// nothing of a part starts after its revoke.
func (d *dispatcher) start(b *batch, l *lane) {
	d.ready--
	l.state = running
	it := l.items.peek()
	it.part.start()
	b.items = append(b.items, it)
	b.msgs = append(b.msgs, it.msg)
}

// finish takes back a batch with a verdict for each item. It returns the items
// that stopped their lanes, and the parts that may be fetched again.
func (d *dispatcher) finish(b *batch, verdicts []verdict, took time.Duration) (dead []*MessageError, resume []*part) {
	b.cancel(nil)
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.running, b)
	b.route.measure(b, took, d.cfg.BatchTime)
	before := d.ready
	for i, it := range b.items {
		v, l, p := &verdicts[i], it.lane, it.part
		l.alone = l.alone || v.alone
		switch {
		case v.class == middleware.Decided:
			p.decide(it)
			l.items.pop()
			d.advance(l)
		case p.state != owned: // the next owner of the partition gets it
			l.items.pop()
			d.advance(l)
		case v.class == middleware.Fatal:
			dead = append(dead, d.stop(l, it, v.err))
		default:
			it.msg, it.detached, it.waits = v.next, true, v.waits
			d.park(l, it, v.delay)
		}
		p.end()
		if p.paused && !p.full(d.cfg.Window, d.cfg.WindowBytes, 1) {
			p.paused = false
			resume = append(resume, p)
		}
	}
	d.wake(d.ready - before)
	d.feed()
	return dead, resume
}

// park lets a lane wait before its head is tried again.
func (d *dispatcher) park(l *lane, it *item, delay time.Duration) {
	if delay <= 0 {
		d.makeReady(l)
		return
	}
	l.state = parked
	l.timer = time.AfterFunc(delay, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		// A revoke may have taken the head meanwhile.
		if l.state == parked && l.items.peek() == it && !d.closed {
			d.makeReady(l)
			d.wake(1)
		}
	})
}

// pausedNow reports whether the partition of p is to be paused, whoever has it.
func (d *dispatcher) pausedNow(p *part) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.parts[partID{p.topic, p.num}]
	return now != nil && now.paused
}

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
	lanes := make(map[*lane]struct{})
	for topic, nums := range m {
		for _, num := range nums {
			p := d.parts[partID{topic, num}]
			if p == nil {
				continue
			}
			parts = append(parts, p)
			undecided += p.undecided
			inflight += p.inflight
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
	return parts, undecided, inflight
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

// An offer is a position of a part that may be committed.
type offer struct {
	part *part
	at   kgo.EpochOffset
}

// offers returns what there is to commit of parts.
func (d *dispatcher) offers(parts []*part) (offers []offer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range parts {
		if p.state < lost && p.dirty() {
			offers = append(offers, offer{p, p.next})
		}
	}
	return offers
}

// mayCommit reports whether a commit for p may still go out under a member ID.
func (d *dispatcher) mayCommit(p *part, member string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return p.state < lost && p.member == member
}

// committed notes what the group has confirmed.
func (d *dispatcher) committed(offers []offer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, o := range offers {
		o.part.committed = o.at
	}
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
