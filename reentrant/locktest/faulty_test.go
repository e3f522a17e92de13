package locktest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward/reentrant"
)

// faulty is a good store behind a fault. It serves one request after the other and
// keeps what faults need to know.
type faulty struct {
	reentrant.Store
	t *testing.T

	// What is set takes the place of doAcquire and so on, with mu held.
	acquire func(reentrant.AcquireRequest) reentrant.AcquireReply
	renew   func(reentrant.RenewRequest) reentrant.HoldReply
	release func(reentrant.ReleaseRequest) reentrant.HoldReply
	group   func(string) string
	listen  func(client string, woken func(reentrant.Handover), do func(string, func(reentrant.Handover)) (func(), error)) (func(), error)

	mute, noError, reverse, once, firstTTL, firstSeat bool
	atMost                                            int

	mu     sync.Mutex
	holder map[string]string    // name -> owner
	fences map[string]int64     // key -> the latest fence
	ends   map[string]time.Time // name -> end of the lease
	queues map[string][]string  // name -> owners that wait
	waited map[string]bool      // key
}

func newFaulty(t *testing.T, s reentrant.Store) *faulty {
	return &faulty{
		Store: s, t: t,
		holder: map[string]string{}, fences: map[string]int64{}, ends: map[string]time.Time{}, queues: map[string][]string{}, waited: map[string]bool{},
	}
}

func key(name, owner string) string { return owner + " " + name }

// until is what is left until then, at least a millisecond.
func until(end time.Time) time.Duration {
	return max(time.Until(end).Truncate(time.Millisecond), time.Millisecond)
}

func (f *faulty) doAcquire(req reentrant.AcquireRequest) reentrant.AcquireReply {
	r := f.Store.Acquire(context.Background(), []reentrant.AcquireRequest{req})[0]
	queue := f.queues[req.Name]
	switch {
	case r.Answer == held:
		f.holder[req.Name], f.fences[key(req.Name, req.Owner)] = req.Owner, r.Fence
		f.ends[req.Name] = time.Now().Add(req.TTL)
		f.queues[req.Name] = slices.DeleteFunc(queue, func(owner string) bool { return owner == req.Owner })
	case r.Answer == busy && req.Seat > 0 && !slices.Contains(queue, req.Owner):
		f.queues[req.Name], f.waited[key(req.Name, req.Owner)] = append(queue, req.Owner), true
	}
	return r
}

func (f *faulty) doRenew(req reentrant.RenewRequest) reentrant.HoldReply {
	return f.Store.Renew(context.Background(), []reentrant.RenewRequest{req})[0]
}

func (f *faulty) doRelease(req reentrant.ReleaseRequest) reentrant.HoldReply {
	r := f.Store.Release(context.Background(), []reentrant.ReleaseRequest{req})[0]
	if r.Answer == held && req.Leave == 0 {
		f.holder[req.Name] = ""
		delete(f.ends, req.Name)
		if queue := f.queues[req.Name]; len(queue) > 0 {
			f.holder[req.Name], f.queues[req.Name] = queue[0], queue[1:]
		}
	}
	return r
}

// emptyQueue gives up all seats of a lock.
func (f *faulty) emptyQueue(name string) {
	for _, owner := range f.queues[name] {
		f.Store.Release(context.Background(), []reentrant.ReleaseRequest{{Name: name, Owner: owner, Leave: 1, TTL: long, GiveUp: true}})
	}
	f.queues[name] = nil
}

// numbered has fences of another kind: number makes that of a new grant.
func (f *faulty) numbered(number func(name string, req reentrant.AcquireRequest, real int64) int64) {
	type grant struct{ real, shown int64 }
	grants := map[string]grant{}
	f.acquire = func(req reentrant.AcquireRequest) reentrant.AcquireReply {
		k, ends := key(req.Name, req.Owner), f.ends[req.Name]
		r := f.doAcquire(req)
		if r.Answer == held {
			if grants[k].real != r.Fence {
				now := f.ends[req.Name]
				f.ends[req.Name] = ends // number looks at the lease before
				if ends.IsZero() {
					delete(f.ends, req.Name)
				}
				grants[k] = grant{r.Fence, number(req.Name, req, r.Fence)}
				f.ends[req.Name] = now
			}
			r.Fence = grants[k].shown
		}
		return r
	}
	f.renew = func(req reentrant.RenewRequest) reentrant.HoldReply {
		if g := grants[key(req.Name, req.Owner)]; g.shown == req.Fence {
			req.Fence = g.real
		}
		return f.doRenew(req)
	}
}

func scaleLeft(by float64) func(f *faulty) {
	return func(f *faulty) {
		f.acquire = func(req reentrant.AcquireRequest) reentrant.AcquireReply {
			r := f.doAcquire(req)
			r.Left = time.Duration(float64(r.Left) * by)
			return r
		}
	}
}

func scaleTTL(by float64) func(f *faulty) {
	return func(f *faulty) {
		f.acquire = func(req reentrant.AcquireRequest) reentrant.AcquireReply {
			req.TTL = time.Duration(float64(req.TTL) * by)
			return f.doAcquire(req)
		}
	}
}

func renamed(rename func(string) string) func(f *faulty) {
	return func(f *faulty) {
		f.acquire = func(req reentrant.AcquireRequest) reentrant.AcquireReply {
			req.Name = rename(req.Name)
			return f.doAcquire(req)
		}
		f.renew = func(req reentrant.RenewRequest) reentrant.HoldReply {
			req.Name = rename(req.Name)
			return f.doRenew(req)
		}
		f.release = func(req reentrant.ReleaseRequest) reentrant.HoldReply {
			req.Name = rename(req.Name)
			return f.doRelease(req)
		}
	}
}

// handsOverFor gives each lock that is handed over another TTL.
func handsOverFor(ttl time.Duration) func(f *faulty) {
	return func(f *faulty) {
		f.release = func(req reentrant.ReleaseRequest) reentrant.HoldReply {
			r := f.doRelease(req)
			if next := f.holder[req.Name]; r.Answer == held && req.Leave == 0 && next != "" {
				f.doAcquire(askFor(ttl, req.Name, next))
			}
			return r
		}
	}
}

// each serves the requests of a call.
func each[Q, R any](f *faulty, ctx context.Context, reqs []Q, name func(Q) string, unknown func(error) R, do func(Q) R) []R {
	f.mu.Lock()
	defer f.mu.Unlock()
	if ctx.Err() != nil && f.mute {
		return nil
	}
	replies := make([]R, len(reqs))
	served := map[string]int{}
	for i, req := range reqs {
		before, again := served[name(req)]
		switch {
		case ctx.Err() != nil && f.noError:
			replies[i] = unknown(nil)
		case ctx.Err() != nil:
			replies[i] = unknown(ctx.Err())
		case f.atMost > 0 && i >= f.atMost:
			replies[i] = unknown(errors.New("too many"))
		case f.once && again:
			replies[i] = replies[before]
		default:
			replies[i] = do(req)
		}
		served[name(req)] = i
	}
	if f.reverse {
		slices.Reverse(replies)
	}
	return replies
}

func (f *faulty) Acquire(ctx context.Context, reqs []reentrant.AcquireRequest) []reentrant.AcquireReply {
	do := f.doAcquire
	if f.acquire != nil {
		do = f.acquire
	}
	return each(f, ctx, reqs, func(req reentrant.AcquireRequest) string { return req.Name },
		func(err error) reentrant.AcquireReply { return reentrant.AcquireReply{Err: err} },
		func(req reentrant.AcquireRequest) reentrant.AcquireReply {
			if f.firstTTL {
				req.TTL = reqs[0].TTL
			}
			if f.firstSeat {
				req.Seat = reqs[0].Seat
			}
			return do(req)
		})
}

func unknownHold(err error) reentrant.HoldReply { return reentrant.HoldReply{Err: err} }

func (f *faulty) Renew(ctx context.Context, reqs []reentrant.RenewRequest) []reentrant.HoldReply {
	do := f.doRenew
	if f.renew != nil {
		do = f.renew
	}
	return each(f, ctx, reqs, func(req reentrant.RenewRequest) string { return req.Name }, unknownHold, do)
}

func (f *faulty) Release(ctx context.Context, reqs []reentrant.ReleaseRequest) []reentrant.HoldReply {
	do := f.doRelease
	if f.release != nil {
		do = f.release
	}
	return each(f, ctx, reqs, func(req reentrant.ReleaseRequest) string { return req.Name }, unknownHold, do)
}

func (f *faulty) Listen(ctx context.Context, client string, woken func(reentrant.Handover)) (func(), error) {
	do := func(client string, woken func(reentrant.Handover)) (func(), error) {
		return f.Store.Listen(ctx, client, woken)
	}
	if f.listen == nil {
		return do(client, woken)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.listen(client, woken, do)
}

func (f *faulty) Group(name string) string {
	if f.group != nil {
		return f.group(name)
	}
	return f.Store.Group(name)
}
