package reentrant

import (
	"context"
	"slices"
)

type carriedKey struct{}

// carried is the list of leases that a context carries, the latest first.
type carried struct {
	lease *Lease // nil: the list ends here, whatever is behind
	next  *carried

	// byName is nil, or an index of a part of the list that begins here and ends
	// before behind.
	byName map[string]*Lease
	behind *carried
}

// manyLeases is from where on an index is made of leases that are carried together.
// Of a batch, each message asks for its own.
const manyLeases = 16

func carriedBy(ctx context.Context) *carried {
	c, _ := ctx.Value(carriedKey{}).(*carried)
	return c
}

// carry returns ctx with the leases added to those it carries.
func carry(ctx context.Context, leases ...*Lease) context.Context {
	behind := carriedBy(ctx)
	c, list := behind, make([]carried, len(leases))
	for i, l := range leases {
		list[i] = carried{lease: l, next: c}
		c = &list[i]
	}
	if len(leases) >= manyLeases && !slices.Contains(leases, nil) {
		c.byName, c.behind = make(map[string]*Lease, len(leases)), behind
		for _, l := range leases { // the latest of a name is the one that is found
			c.byName[l.hold.name] = l
		}
	}
	return context.WithValue(ctx, carriedKey{}, c)
}

// A carrier is a context that carries one lease more, as part of a hold: it is made
// for each lock.
type carrier struct {
	context.Context
	list carried
}

func (c *carrier) carry(ctx context.Context, l *Lease) {
	c.Context = ctx
	c.list = carried{lease: l, next: carriedBy(ctx)}
}

// Value implements [context.Context].
func (c *carrier) Value(key any) any {
	if key == (carriedKey{}) {
		return &c.list
	}
	return c.Context.Value(key)
}

// find returns the latest lease in ctx that fits.
func find(ctx context.Context, fits func(*Lease) bool) *Lease {
	for c := carriedBy(ctx); c != nil && c.lease != nil; c = c.next {
		if fits(c.lease) {
			return c.lease
		}
	}
	return nil
}

// FromContext returns the lease of the named lock that ctx carries.
func FromContext(ctx context.Context, name string) (*Lease, bool) {
	for c := carriedBy(ctx); c != nil && c.lease != nil; {
		if c.byName != nil {
			if l, ok := c.byName[name]; ok {
				return l, true
			}
			c = c.behind
			continue
		}
		if c.lease.hold.name == name {
			return c.lease, true
		}
		c = c.next
	}
	return nil, false
}

// With returns a context that carries leases, so that they are found by
// [FromContext] and re-entered by Acquire. It does not end with them: see
// [Narrow].
func With(ctx context.Context, leases ...*Lease) context.Context {
	return carry(ctx, leases...)
}

// Narrow returns a context that carries, of the leases in ctx, only those of the
// named locks, and that ends when one of these does, with its cause. So work
// that shares a context with its neighbours gets one of its own, and never
// re-enters a neighbour's lock. If ctx carries none at all, it is returned as
// it is.
//
// What Narrow makes is freed when ctx or the first of the leases ends.
func Narrow(ctx context.Context, names ...string) context.Context {
	c := carriedBy(ctx)
	if c == nil || c.lease == nil {
		return ctx
	}
	var leases []*Lease
	for ; c != nil && c.lease != nil; c = c.next {
		if slices.Contains(names, c.lease.hold.name) {
			leases = append(leases, c.lease)
		}
	}
	if len(leases) == 0 {
		return context.WithValue(ctx, carriedKey{}, &carried{}) // hides what ctx carries
	}
	var kept *carried
	for _, l := range slices.Backward(leases) { // keeps the latest first
		kept = &carried{lease: l, next: kept}
	}
	narrow, cancel := context.WithCancelCause(context.WithValue(ctx, carriedKey{}, kept))
	follow(cancel, leases...)
	return narrow
}

// follow ends something else, with the same cause, when one of the leases ends.
func follow(cancel context.CancelCauseFunc, leases ...*Lease) {
	for _, l := range leases {
		end := func() { cancel(context.Cause(l.ctx)) }
		if l.ctx.Err() != nil {
			end() // at once, so that the caller never sees it alive
		} else {
			context.AfterFunc(l.ctx, end)
		}
	}
}
