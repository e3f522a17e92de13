package demo

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
)

// waitAtMost bounds each wait for an event. None is expected to come near it: the longest
// takes a session timeout of Kafka and a rebalance.
const waitAtMost = 60 * time.Second

// A journal is all that the children reported, and the parent's server was asked. It is
// safe for concurrent use.
type journal struct {
	mu      sync.Mutex // guards all below
	changed chan struct{}

	outcomes map[position][]told // of each delivery, in order of arrival
	grants   map[grant]*tenure
	held     map[position][]*tenure // without locks, these are not in grants
	markings []depthSeen
	dead     map[string]bool // instances that were killed
	counts   counts
}

// told is an outcome, and who reported it.
type told struct {
	by string
	outcome
}

// A tenure is what is known about a grant.
type tenure struct {
	grant
	by    string
	since time.Time // of the first report
	at    position  // of the message under it, zero for the scan job
	id    string    // of that message

	// lost says why the lock was not its holder's any more, though it was not released:
	// what the holder said, or what was done to it before it could say anything.
	lost string
}

// depthSeen is what Redis said about the lock of the scan job while it was marking.
type depthSeen struct {
	marking
	depth int
	err   error
}

type counts struct {
	tries      int
	deliveries int // tries that decided a record
	applied    int
	skipped    int
	duplicates int
	stale      int
	busy       int
	otherTries int // that did not decide: lost leases, ended contexts, failures

	rounds    int
	roundBusy int
	announced int
}

func newJournal() *journal {
	return &journal{
		changed:  make(chan struct{}),
		outcomes: map[position][]told{},
		grants:   map[grant]*tenure{},
		held:     map[position][]*tenure{},
		dead:     map[string]bool{},
	}
}

// tell adds a report. It wakes those who wait.
func (j *journal) tell(by string, r report) {
	j.change(func() {
		switch {
		case r.Holding != nil:
			j.hold(by, r.Holding.Grant, r.Holding.At, r.Holding.ID)
		case r.Outcome != nil:
			j.outcome(by, *r.Outcome)
		case r.Round != nil:
			j.counts.rounds++
			j.counts.announced += r.Round.Announced
			if r.Round.Busy {
				j.counts.roundBusy++
			}
		}
	})
}

// change changes the journal and wakes those who wait.
func (j *journal) change(f func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	f()
	close(j.changed)
	j.changed = make(chan struct{})
}

// hold notes that an instance holds a lock, for a message if it is one of an order.
func (j *journal) hold(by string, g grant, at position, id string) {
	t := &tenure{grant: g, by: by, since: time.Now(), at: at, id: id}
	if id != "" {
		j.held[at] = append(j.held[at], t)
	}
	if g.Lock != "" && j.grants[g] == nil {
		j.grants[g] = t
	}
}

// lost notes why a grant ended before its holder released the lock.
func (j *journal) lost(g grant, why string) {
	if t := j.grants[g]; t != nil {
		t.lost = why
	}
}

func (j *journal) outcome(by string, o outcome) {
	j.outcomes[o.At] = append(j.outcomes[o.At], told{by, o})
	if o.Lost != "" {
		j.lost(o.Grant, o.Lost)
	}
	c := &j.counts
	c.tries++
	if o.Decided {
		c.deliveries++
	}
	switch {
	case o.Result == resultApplied:
		c.applied++
	case o.Result == resultSkipped:
		c.skipped++
	case o.Result == resultDuplicate:
		c.duplicates++
	case o.Result == resultStale:
		c.stale++
	case o.Result == resultBusy:
		c.busy++
	default:
		c.otherTries++
	}
}

// holder returns who first was about to handle a delivery, and whether anybody was.
func (j *journal) holder(at position) (tenure, bool) {
	if ts := j.held[at]; len(ts) > 0 {
		return *ts[0], true
	}
	return tenure{}, false
}

// decided returns the outcome that decided a delivery, and whether there is one.
func (j *journal) decided(at position) (told, bool) {
	for _, o := range j.outcomes[at] {
		if o.Decided {
			return o, true
		}
	}
	return told{}, false
}

// await waits until done returns true. done is called with the journal locked, after
// each change. The error says what was awaited.
func (j *journal) await(ctx context.Context, what string, done func() bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, waitAtMost, fmt.Errorf("not seen within %v", waitAtMost))
	defer cancel()
	for {
		j.mu.Lock()
		ok, changed := done(), j.changed
		j.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, context.Cause(ctx))
		}
	}
}

func (j *journal) read(f func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	f()
}

// poll asks until the answer is yes, for what no report tells. A broker that wants to be
// asked again is. The error says what was awaited.
func poll(ctx context.Context, what string, ask func(ctx context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, waitAtMost, fmt.Errorf("not seen within %v", waitAtMost))
	defer cancel()
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, err := ask(ctx)
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("wait for %s: %w", what, errors.Join(context.Cause(ctx), err))
		case err != nil && !askAgain(err):
			return fmt.Errorf("wait for %s: %w", what, err)
		case ok && err == nil:
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, errors.Join(context.Cause(ctx), err))
		}
	}
}

// askAgain reports whether Kafka says that an error will pass.
func askAgain(err error) bool {
	e, ok := errors.AsType[*kerr.Error](err)
	return ok && e.Retriable
}
