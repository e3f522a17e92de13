package consumer

import (
	"context"
	"sync"
	"time"

	"github.com/onceward/onceward/middleware"
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
