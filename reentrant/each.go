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
	if err != nil {
		err = fmt.Errorf("acquire locks: %w", err)
	}
	var fresh []string
	var at []int
	for i, name := range names {
		if errs[i] = err; err != nil {
			continue
		}
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
		got, failed := l.try(ctx, fresh, o)
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
	var reqs []releaseRequest
	var after []func(holdReply)
	send := func() {
		if len(reqs) == 0 {
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseWithin)
		defer cancel()
		for j, r := range l.store.release(ctx, reqs) {
			after[j](r)
		}
		reqs, after = nil, nil
	}
	for i, lease := range leases {
		if lease == nil {
			continue
		}
		h := lease.hold
		if errs[i] = lease.retire(); errs[i] != nil {
			continue
		}
		if !h.tryBegin() {
			// Never wait for a turn while holding others: one of them may be this
			// one (two leases of a lock), or somebody may wait the other way round.
			send()
			h.turn <- struct{}{} // an enter under way ends with its round trip
		}
		left := h.leave()
		reqs = append(reqs, releaseRequest{name: h.name, owner: h.owner, leave: left, ttl: h.lease.TTL()})
		after = append(after, func(r holdReply) {
			errs[i] = h.settle(r, left)
			<-h.turn
		})
	}
	send()
	return errs
}
