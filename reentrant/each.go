package reentrant

import (
	"context"
	"fmt"
)

// AcquireEach takes each of the named locks that is free, in one round trip, and
// does not wait for the others. Lease i is that of name i, or nil, and error i
// says why: see [Locker.Acquire]. A name that occurs twice is busy the second
// time. Each lease has a context of its own; [With] puts several into one.
//
// Names that ctx carries are entered once more, one after the other.
func (l *Locker) AcquireEach(ctx context.Context, names []string, opts ...AcquireOption) ([]*Lease, []error) {
	leases, errs := make([]*Lease, len(names)), make([]error, len(names))
	o, err := options(opts)
	if err == nil {
		err = l.usable(ctx)
	}
	if err != nil {
		for i, name := range names {
			errs[i] = fmt.Errorf("acquire lock %q: %w", name, err)
		}
		return leases, errs
	}
	fresh := make([]string, 0, len(names))
	at := make([]int, 0, len(names))
	for i, name := range names {
		if errs[i] = validName(name); errs[i] != nil {
			continue
		}
		if outer := l.carriedBy(ctx, name); outer != nil {
			leases[i], errs[i] = outer.hold.enter(ctx)
			continue
		}
		fresh, at = append(fresh, name), append(at, i)
	}
	if len(fresh) > 0 {
		got, failed := l.tryEach(ctx, fresh, o)
		for j, i := range at {
			leases[i], errs[i] = got[j], failed[j]
		}
	}
	return leases, errs
}

// ReleaseEach gives back the leases in one round trip, as [Lease.Release] does
// for one. Error i is about lease i. A nil lease is passed over.
func (l *Locker) ReleaseEach(ctx context.Context, leases []*Lease) []error {
	errs := make([]error, len(leases))
	departures := make([]departure, 0, len(leases))
	send := func() {
		if len(departures) > 0 {
			l.depart(ctx, departures, errs)
			departures = departures[:0]
		}
	}
	for i, lease := range leases {
		if lease == nil {
			continue
		}
		if errs[i] = lease.retire(); errs[i] != nil {
			continue
		}
		left, done, ok := lease.hold.leave()
		for !ok {
			// Never wait for a turn while holding others: one of them may be this
			// one (two leases of a lock), or somebody may wait the other way round.
			send()
			lease.hold.begin(context.Background())() // a turn lasts for a round trip
			left, done, ok = lease.hold.leave()
		}
		departures = append(departures, departure{hold: lease.hold, index: i, left: left, done: done})
	}
	send()
	return errs
}

// A departure is the release of one handle.
type departure struct {
	hold  *hold
	index int // of the lease and its error
	left  int // depth that stays
	done  func()
}

func (l *Locker) depart(ctx context.Context, ds []departure, errs []error) {
	if len(ds) == 1 {
		errs[ds[0].index] = ds[0].hold.depart(ds[0].left)
		ds[0].done()
		return
	}
	reqs := make([]ReleaseRequest, len(ds))
	for i, d := range ds {
		reqs[i] = d.hold.departure(d.left)
	}
	for i, r := range l.store.Release(context.WithoutCancel(ctx), reqs) {
		errs[ds[i].index] = ds[i].hold.settle(r, ds[i].left)
		ds[i].done()
	}
}
