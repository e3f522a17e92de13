package watchdog

import (
	"container/heap"
	"context"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"
)

// A Watchdog renews leases. Create it with [New]; it is safe for concurrent use.
type Watchdog struct {
	cfg    Config
	epoch  time.Time
	ctx    context.Context // the lifetime of the calls of Renew; ended by Close
	cancel context.CancelFunc
	wg     sync.WaitGroup // flights

	mu     sync.Mutex // guards what follows, and the fields of leases that say so
	queue  byDue
	timer  *time.Timer   // fires at wakeAt; nil until it is first needed
	wakeAt time.Duration // 0: not set
	groups map[string]*group
	held   map[*Lease]struct{}
	closed bool
	stats  Stats
}

// A group is what is due in one failure domain.
type group struct {
	due     []*Lease
	flights int
}

// Stats are counts since the watchdog was made.
type Stats struct {
	Leases   int           // held now
	Renewed  int64         // renewals answered with Held
	Refused  int64         // renewals answered with Gone or Taken
	Failed   int64         // renewals without an answer
	Lateness time.Duration // the longest time between when a renewal was due and when it was sent
}

// New returns a watchdog. It starts nothing.
func New(cfg Config) (*Watchdog, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	w := &Watchdog{cfg: cfg, epoch: time.Now(), groups: map[string]*group{}, held: map[*Lease]struct{}{}}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	return w, nil
}

// Close ends all leases with [Closed] and returns when no call of Renew is under
// way. Leases granted later end at once. It may be called more than once.
func (w *Watchdog) Close() {
	w.mu.Lock()
	w.closed = true
	leases := make([]*Lease, 0, len(w.held))
	for l := range w.held {
		leases = append(leases, l)
	}
	w.mu.Unlock()
	w.cancel()
	for _, l := range leases {
		w.lose(l, Closed)
	}
	w.wg.Wait()
}

// Stats returns what was counted so far.
func (w *Watchdog) Stats() Stats {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.stats
	s.Leases = len(w.held)
	return s
}

func (w *Watchdog) now() time.Duration { return time.Since(w.epoch) }

func (w *Watchdog) grant(l *Lease, t Terms) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	sent := t.Sent.Sub(w.epoch)
	length := l.ttl
	if t.For > 0 {
		length = t.For
	}
	trust := sent + length - Margin(length)
	if l.state != fresh || w.closed || trust <= w.now() {
		l.state = ended
		return false
	}
	l.state, l.trust, l.renewed = held, trust, !t.Fixed
	if t.MaxHold > 0 {
		l.last = sent + t.MaxHold
	}
	w.held[l] = struct{}{}
	l.timer = time.AfterFunc(l.until()-w.now(), func() { w.overdue(l) })
	if l.renewed {
		// What was granted together is spread over a quarter of the first period.
		period := length / 3
		l.due = sent + period - time.Duration(rand.Int64N(int64(period/4)+1))
		w.push(l)
	}
	return true
}

// until returns when the trust in l ends. It needs w.mu.
func (l *Lease) until() time.Duration {
	if l.last > 0 {
		return min(l.trust, l.last)
	}
	return l.trust
}

// end makes l ended and returns the state it was in.
func (w *Watchdog) end(l *Lease) state {
	w.mu.Lock()
	defer w.mu.Unlock()
	was := l.state
	l.state = ended
	if was == held {
		w.forget(l)
	}
	return was
}

// forget needs w.mu.
func (w *Watchdog) forget(l *Lease) {
	delete(w.held, l)
	l.timer.Stop()
	if l.index >= 0 {
		heap.Remove(&w.queue, l.index)
	}
	if len(w.queue) == 0 && w.timer != nil {
		w.timer.Stop()
		w.wakeAt = 0
	}
}

// lose ends l and tells its holder why, unless it had ended before.
func (w *Watchdog) lose(l *Lease, why Reason) {
	if w.end(l) == held {
		w.protect(func() { l.holder.Lost(why) })
	}
}

// overdue runs when the trust in l was to end. A renewal may have moved the end
// since the timer was set.
func (w *Watchdog) overdue(l *Lease) {
	w.mu.Lock()
	if l.state != held {
		w.mu.Unlock()
		return
	}
	now := w.now()
	if left := l.until() - now; left > 0 {
		l.timer.Reset(left)
		w.mu.Unlock()
		return
	}
	why := Expired
	switch {
	case l.last > 0 && l.last <= now:
		why = TooLong
	case l.doubtful:
		why = Unreachable
	}
	w.mu.Unlock()
	w.lose(l, why)
}

// push queues l for renewal at l.due. It needs w.mu.
func (w *Watchdog) push(l *Lease) {
	heap.Push(&w.queue, l)
	w.wake()
}

// wake sets the timer for the first lease of the queue. It needs w.mu.
func (w *Watchdog) wake() {
	if len(w.queue) == 0 {
		return
	}
	first := w.queue[0].due
	if w.wakeAt != 0 && w.wakeAt <= first {
		return // it wakes early enough
	}
	w.wakeAt = first
	if wait := max(0, first-w.now()); w.timer == nil {
		w.timer = time.AfterFunc(wait, w.tick)
	} else {
		w.timer.Reset(wait)
	}
}

// tick hands what is due to the flights of its group.
func (w *Watchdog) tick() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wakeAt = 0
	now := w.now()
	for len(w.queue) > 0 && w.queue[0].due <= now {
		l := heap.Pop(&w.queue).(*Lease)
		g := w.groups[l.group]
		if g == nil {
			g = &group{}
			w.groups[l.group] = g
		}
		if g.flights >= w.cfg.Flights {
			l.doubtful = true // those before it got no answer yet
		}
		g.due = append(g.due, l)
	}
	for name, g := range w.groups {
		if w.closed {
			break
		}
		for waiting := len(g.due); waiting > 0 && g.flights < w.cfg.Flights; waiting -= w.cfg.Chunk {
			g.flights++
			w.wg.Go(func() { w.fly(name, g) })
		}
	}
	w.wake()
}

// fly renews what is due in g, chunk after chunk, until nothing is left.
func (w *Watchdog) fly(name string, g *group) {
	for {
		leases, left, sent := w.take(name, g)
		if len(leases) == 0 {
			return
		}
		verdicts := w.renew(leases, left)
		for i, l := range leases {
			v := Unknown
			if i < len(verdicts) {
				v = verdicts[i]
			}
			w.settle(l, v, sent)
		}
	}
}

// take returns the next chunk of g, the longest time that is left to one of its
// leases, and the time. With nothing to do it signs the flight off.
func (w *Watchdog) take(name string, g *group) (leases []*Lease, left, now time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now = w.now()
	n := 0
	for ; n < len(g.due) && len(leases) < w.cfg.Chunk; n++ {
		l := g.due[n]
		if l.state != held || l.until() <= now {
			continue // ended while it waited, or about to: the timer tells why
		}
		l.doubtful = true // until there is an answer
		w.stats.Lateness = max(w.stats.Lateness, now-l.due)
		left = max(left, l.until()-now)
		leases = append(leases, l)
	}
	g.due = g.due[n:]
	if len(leases) == 0 {
		g.flights--
		if g.flights == 0 && len(g.due) == 0 {
			delete(w.groups, name)
		}
	}
	return leases, left, now
}

func (w *Watchdog) renew(leases []*Lease, left time.Duration) (verdicts []Verdict) {
	ctx, cancel := context.WithTimeout(w.ctx, left)
	defer cancel()
	w.protect(func() { verdicts = w.cfg.Renew(ctx, leases) })
	return verdicts
}

// settle acts on the verdict of a renewal that was sent at that time.
func (w *Watchdog) settle(l *Lease, v Verdict, sent time.Duration) {
	w.mu.Lock()
	if l.state != held { // ended meanwhile: the verdict is about a lease that nobody has
		w.mu.Unlock()
		return
	}
	switch v {
	case Held:
		w.stats.Renewed++
		l.doubtful = false
		// The timer stays as it is: when it fires it sees the new end.
		l.trust = max(l.trust, sent+l.ttl-Margin(l.ttl))
		l.due = sent + l.ttl/3
		w.push(l)
		w.mu.Unlock()
	case Gone, Taken:
		w.stats.Refused++
		w.mu.Unlock()
		why := Expired
		if v == Taken {
			why = TakenOver
		}
		w.lose(l, why)
	default:
		w.stats.Failed++
		// Ten tries in a third of the TTL, and never a busy loop.
		l.due = w.now() + max(l.ttl/30, 5*time.Millisecond)
		w.push(l)
		w.mu.Unlock()
	}
}

// protect runs f, code that is not ours, so that its panic ends nothing else.
func (w *Watchdog) protect(f func()) {
	defer func() {
		if v := recover(); v != nil && w.cfg.Panicked != nil {
			w.cfg.Panicked(v, debug.Stack())
		}
	}()
	f()
}

// byDue is a heap of leases, the one that is due first on top.
type byDue []*Lease

func (q byDue) Len() int           { return len(q) }
func (q byDue) Less(i, j int) bool { return q[i].due < q[j].due }
func (q byDue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

func (q *byDue) Push(x any) {
	l := x.(*Lease)
	l.index = len(*q)
	*q = append(*q, l)
}

func (q *byDue) Pop() any {
	old := *q
	l := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	l.index = -1
	return l
}
