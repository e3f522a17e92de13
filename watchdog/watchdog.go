package watchdog

import (
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
	wg     sync.WaitGroup // flights, and calls of holders

	mu     sync.Mutex // guards what follows, and the fields of leases that say so
	queues [2]queue   // by due, by end
	timer  *time.Timer
	wakeAt time.Duration // when timer fires; 0: not set
	groups map[string]*group
	closed bool
	stats  Stats
}

// early is by which part of its TTL a lease may be renewed before it is due, to go with
// others: a hundredth of the period. With more, what is held would come in bursts.
const early = 300

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
	w := &Watchdog{cfg: cfg, epoch: time.Now(), groups: map[string]*group{}}
	w.queues[end].which = end
	w.ctx, w.cancel = context.WithCancel(context.Background())
	return w, nil
}

// Close ends all leases with [Closed] and returns when no call of Renew or of a
// holder is under way. Leases granted later end at once. It may be called more than once.
func (w *Watchdog) Close() {
	w.mu.Lock()
	w.closed = true
	for len(w.queues[end].leases) > 0 { // all that are held have an end
		w.lose(w.queues[end].leases[0], Closed)
	}
	if w.timer != nil {
		w.timer.Stop()
	}
	w.mu.Unlock()
	w.cancel()
	w.wg.Wait()
}

// Stats returns what was counted so far.
func (w *Watchdog) Stats() Stats {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.stats
	s.Leases = len(w.queues[end].leases)
	return s
}

func (w *Watchdog) now() time.Duration { return time.Since(w.epoch) }

func (w *Watchdog) grant(l *Lease, t Terms) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	sent := t.Sent.Sub(w.epoch)
	if t.MaxHold > 0 {
		l.last = sent + t.MaxHold
	}
	length := l.ttl
	if t.For > 0 {
		length = min(length, t.For)
	}
	trust := sent + length - Margin(length)
	if l.state != fresh || w.closed || trust <= w.now() {
		l.state = ended
		return false
	}
	l.state = held
	w.queues[end].put(l, l.capped(trust))
	if !t.Fixed {
		// What was granted together is spread over a quarter of the first period.
		period := length / 3
		w.queues[due].put(l, sent+period-time.Duration(rand.Int64N(int64(period/4)+1)))
	}
	w.wake()
	return true
}

// capped returns the end of a trust, given the maximum hold time.
func (l *Lease) capped(trust time.Duration) time.Duration {
	if l.last > 0 {
		return min(trust, l.last)
	}
	return trust
}

// retire makes l ended and returns the state it was in. It needs w.mu.
func (w *Watchdog) retire(l *Lease) state {
	was := l.state
	l.state = ended
	w.queues[due].remove(l)
	w.queues[end].remove(l)
	return was
}

// lose ends l and tells its holder why, unless it had ended before. It needs w.mu.
func (w *Watchdog) lose(l *Lease, why Reason) {
	if w.retire(l) == held {
		// Holders are not ours: each on a goroutine of its own, so that one that
		// blocks keeps nobody else from being told.
		w.wg.Go(func() { w.protect(func() { l.holder.Lost(why) }) })
	}
}

// wake sets the timer for what comes first. A timer that goes off too early, since the
// lease it was set for has ended, is set anew then: locks that are held for a moment
// only would else set it twice each, which wakes a thread. It needs w.mu.
func (w *Watchdog) wake() {
	first, any := w.queues[end].first()
	if at, ok := w.queues[due].first(); ok {
		first = min(first, at) // what is due has an end as well
	}
	if !any || w.wakeAt != 0 && w.wakeAt <= first {
		return // nothing to wake for, or it wakes early enough
	}
	w.wakeAt = max(first, 1)
	if wait := max(0, first-w.now()); w.timer == nil {
		w.timer = time.AfterFunc(wait, w.tick)
	} else {
		w.timer.Reset(wait)
	}
}

// tick ends what is over, and hands what is due to the flights of its group. It
// never waits, so renewals that hang cannot keep a lease from ending.
func (w *Watchdog) tick() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wakeAt = 0
	if w.closed {
		return
	}
	now := w.now()
	for at, ok := w.queues[end].first(); ok && at <= now; at, ok = w.queues[end].first() {
		l := w.queues[end].leases[0]
		switch {
		case l.last > 0 && l.last <= now:
			w.lose(l, TooLong)
		case l.doubtful:
			w.lose(l, Unreachable)
		default:
			w.lose(l, Expired)
		}
	}
	for at, ok := w.queues[due].first(); ok; at, ok = w.queues[due].first() {
		l := w.queues[due].leases[0]
		// What is due a little later goes with it: a call for each lease would cost far
		// more than one for a hundred.
		if at > now+l.ttl/early {
			break
		}
		w.queues[due].remove(l)
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
		until := l.places[end].at
		if l.state != held || until <= now {
			continue // ended while it waited, or about to: the timer tells why
		}
		l.doubtful = true // until there is an answer
		w.stats.Lateness = max(w.stats.Lateness, now-l.places[due].at)
		left = max(left, until-now)
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
	defer w.mu.Unlock()
	if l.state != held { // ended meanwhile: the verdict is about a lease that nobody has
		return
	}
	switch v {
	case Held:
		w.stats.Renewed++
		l.doubtful = false
		w.queues[end].put(l, max(l.places[end].at, l.capped(sent+l.ttl-Margin(l.ttl))))
		w.queues[due].put(l, sent+l.ttl/3)
	case Gone:
		w.stats.Refused++
		w.lose(l, Expired)
	case Taken:
		w.stats.Refused++
		w.lose(l, TakenOver)
	default:
		w.stats.Failed++
		// Ten tries in a third of the TTL, and never a busy loop.
		w.queues[due].put(l, w.now()+max(l.ttl/30, 5*time.Millisecond))
	}
	w.wake()
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
