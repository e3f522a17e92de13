package reentrant

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward/watchdog"
)

// A line is the queue for one lock inside this process: at its head one caller that
// asks the store (and has a seat there while the lock is busy), behind it those
// that wait for their turn to be the head. So a lock has one seat per process,
// however many callers wait for it.
type line struct {
	behind []chan struct{} // closed when it is their turn; in the order of the calls

	owner string     // of the head
	given chan int64 // of size 1: the fence of the latest grant, when the store has handed it the lock
}

// wait takes a lock that ctx does not carry, waiting while it is busy.
func (l *Locker) wait(ctx context.Context, name string, o acquireOptions) (*Lease, error) {
	asking := ctx // the caller's own is not shortened: it lives on in the lease's
	if o.wait > 0 {
		var cancel context.CancelFunc
		asking, cancel = context.WithTimeoutCause(ctx, o.wait, fmt.Errorf("waited %v, as long as it was to", o.wait))
		defer cancel()
	}
	if err := l.enterLine(asking, name); err != nil {
		return nil, err
	}
	defer l.leaveLine(name)
	return l.seated(ctx, asking, name, o)
}

// enterLine returns when the caller is the head of the line for a lock.
func (l *Locker) enterLine(ctx context.Context, name string) error {
	l.mu.Lock()
	ln := l.lines[name]
	if ln == nil {
		l.lines[name] = &line{}
		l.mu.Unlock()
		return nil
	}
	turn := make(chan struct{})
	ln.behind = append(ln.behind, turn)
	l.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	case <-l.life.Done():
	}
	l.mu.Lock()
	i := slices.Index(ln.behind, turn)
	if i >= 0 {
		ln.behind = slices.Delete(ln.behind, i, i+1)
	}
	l.mu.Unlock()
	if i < 0 { // it was our turn after all
		l.leaveLine(name)
	}
	return l.gaveUp(ctx, &BusyError{Name: name})
}

// leaveLine makes the next caller the head.
func (l *Locker) leaveLine(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ln := l.lines[name]
	ln.owner, ln.given = "", nil
	if len(ln.behind) == 0 {
		delete(l.lines, name)
		return
	}
	close(ln.behind[0])
	ln.behind = ln.behind[1:]
}

// gaveUp says why waiting for a busy lock ended.
func (l *Locker) gaveUp(ctx context.Context, busy *BusyError) error {
	if ctx.Err() == nil {
		return fmt.Errorf("acquire lock %q: %w", busy.Name, ErrClosed)
	}
	return fmt.Errorf("acquire: %w: %w", busy, context.Cause(ctx))
}

// seated asks the store for a lock until it is granted, as the head of the line. It
// keeps a seat, which each question renews, and is told when the lock is handed to it;
// should that news be lost, the next question finds out. It ends with asking.
func (l *Locker) seated(ctx, asking context.Context, name string, o acquireOptions) (lease *Lease, err error) {
	h := l.newHold(ctx, name, l.ttl(o))
	defer func() {
		if lease == nil {
			h.cancel(err)
		}
	}()
	given := make(chan int64, 1)
	l.mu.Lock()
	ln := l.lines[name]
	ln.owner, ln.given = h.owner, given
	l.mu.Unlock()

	pause := min(min(h.lease.TTL(), HandoverTTL)/3, time.Second)
	var seat time.Duration // taken once news is heard
	if l.listening.stop.Load() != nil {
		seat = 3 * pause
	}
	waits := false        // for a lock that is known to be busy
	var failing time.Time // since when there was no answer
	for {
		sent := time.Now()
		r, err := l.acquires.do(asking, l.store.Group(name), h.request(o, seat), func(AcquireReply) { l.withdraw(ctx, true, h) })
		switch {
		case err != nil: // it is over; what comes is withdrawn when it comes
			if !waits && ctx.Err() != nil {
				return nil, fmt.Errorf("acquire lock %q: %w", name, err)
			}
			return nil, l.gaveUp(asking, &BusyError{Name: name})
		case r.Err != nil && failing.IsZero():
			failing = sent
		case r.Answer == Held:
			lease, err, ghost := l.settle(ctx, h, o, sent, r)
			if ghost {
				l.withdraw(ctx, true, h)
			}
			return lease, err
		case r.Answer == Busy:
			waits, failing = true, time.Time{}
		}
		// Who waits already does so through a failover, but not through more.
		if r.Err != nil && (!waits || permanent(r.Err) || time.Since(failing) > l.cfg.TTL) {
			l.withdraw(ctx, true, h)
			return nil, r.Err
		}
		if seat == 0 {
			if err := l.listen(asking); asking.Err() != nil {
				return nil, l.gaveUp(asking, &BusyError{Name: name, Left: r.Left})
			} else if err != nil {
				return nil, fmt.Errorf("acquire lock %q, which is busy: %w", name, err)
			}
			seat = 3 * pause
			continue
		}

		// Part of the pause is random, so that those who wait do not ask together. A
		// lease that ends sooner is worth asking for at once.
		d := pause - time.Duration(rand.Int64N(int64(pause/4)+1))
		if r.Left > 0 {
			d = min(d, r.Left+time.Millisecond)
		}
		timer := time.NewTimer(d)
		select {
		case <-timer.C:
			continue
		case fence := <-given:
			timer.Stop()
			if r.Answer == Busy && l.take(ctx, h, o, sent, r.Fence, fence) {
				return &h.outer, nil
			}
			continue
		case <-asking.Done():
		case <-l.life.Done():
		}
		timer.Stop()
		l.withdraw(ctx, true, h)
		return nil, l.gaveUp(asking, &BusyError{Name: name, Left: r.Left})
	}
}

// take makes h the holder of the lock that was handed to it with that fence. Its latest
// question was sent at that time, and answered with busy when the last fence was
// another.
//
// A grant with a higher fence came after that answer, so from then on it lasts as long as
// a handover at least: trust begins when the question was sent. A lower one is old news,
// and that grant is over: else the answer had not been busy. In doubt h asks again.
func (l *Locker) take(ctx context.Context, h *hold, o acquireOptions, sent time.Time, last, fence int64) bool {
	if last == 0 || fence <= last || o.fixed > HandoverTTL || ctx.Err() != nil {
		return false
	}
	h.fence = fence
	if h.lease.Grant(watchdog.Terms{Sent: sent, For: HandoverTTL, Fixed: o.fixed > 0, MaxHold: l.cfg.MaxHold}) {
		return true
	}
	h.lease.Init(l.dog, l.store.Group(h.name), h.lease.TTL(), h)
	return false
}

// handed tells the head of a line that the lock is its own now.
func (l *Locker) handed(g Handover) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ln := l.lines[g.Name]; ln != nil && ln.owner == g.Owner {
		select {
		case <-ln.given: // older news
		default:
		}
		ln.given <- g.Fence
	}
}

// listening is the one subscription of a locker, made when first a lock is busy.
type listening struct {
	turn chan struct{} // of size 1, held while subscribing
	stop atomic.Pointer[func()]
}

// listen returns when news of handed locks is heard.
func (l *Locker) listen(ctx context.Context) error {
	if l.listening.stop.Load() != nil {
		return nil
	}
	select {
	case l.listening.turn <- struct{}{}:
		defer func() { <-l.listening.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if l.listening.stop.Load() != nil {
		return nil
	}
	if l.life.Err() != nil {
		return ErrClosed
	}
	stop, err := l.store.Listen(ctx, l.owners.client, l.handed)
	if err == nil {
		l.listening.stop.Store(&stop)
	}
	return err
}

func (g *listening) close() {
	g.turn <- struct{}{}
	defer func() { <-g.turn }()
	if stop := g.stop.Swap(nil); stop != nil {
		(*stop)()
	}
}
