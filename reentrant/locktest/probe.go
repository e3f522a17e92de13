package locktest

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/onceward/onceward/reentrant"
)

const (
	held, busy, gone = reentrant.Held, reentrant.Busy, reentrant.Gone

	// long is a TTL, or the life of a seat, that no check lives to see the end of.
	long = 10 * time.Minute
	// short is one that a check waits for.
	short = 300 * time.Millisecond
	// tick is how exact a store's clock must be.
	tick = time.Second
)

// A probe asks a store, one request at a time unless a check says otherwise. A step
// that does not get the answer it wants ends the check.
type probe struct {
	ctx    context.Context
	s      reentrant.Store
	client string
	names  int
	stops  []func()
}

func newProbe(ctx context.Context, s reentrant.Store) *probe {
	return &probe{ctx: ctx, s: s, client: rand.Text()}
}

func (p *probe) close() {
	for _, stop := range p.stops {
		stop()
	}
}

// owner returns an owner of this client.
func (p *probe) owner(nick string) string { return p.client + "." + nick }

// name returns the name of a lock that was not used yet.
func (p *probe) name() string {
	p.names++
	return "lock " + strconv.Itoa(p.names)
}

// timely makes steps that mean something only while the leases in them last, so for a
// good store as well as for a bad one: if they took longer than limit they are made
// again, with another lock.
func (p *probe) timely(limit time.Duration, steps func(name string)) {
	for {
		start := time.Now()
		err := p.catch(func() { steps(p.name()) })
		if time.Since(start) < limit {
			if err != nil {
				panic(failure{err})
			}
			return
		}
		if p.ctx.Err() != nil {
			p.failf("this machine is too slow: no steps within %v", limit)
		}
	}
}

// sleep waits until the store's clock has gone on by d.
func (p *probe) sleep(d time.Duration) {
	select {
	case <-time.After(d + d/10 + 20*time.Millisecond):
	case <-p.ctx.Done():
		p.failf("ended while it slept")
	}
}

// acquire asks for one lock and looks whether the reply is one.
func (p *probe) acquire(req reentrant.AcquireRequest) reentrant.AcquireReply {
	return p.acquireAll(req)[0]
}

func (p *probe) acquireAll(reqs ...reentrant.AcquireRequest) []reentrant.AcquireReply {
	replies := p.s.Acquire(p.ctx, reqs)
	if len(replies) != len(reqs) {
		p.failf("acquire of %d locks: %d replies", len(reqs), len(replies))
	}
	for i, r := range replies {
		if why := badAcquire(reqs[i], r); why != "" {
			p.failf("acquire %s: %s", describe(reqs[i]), why)
		}
	}
	return replies
}

// badAcquire says what is wrong with a reply, whatever the state of the lock.
func badAcquire(req reentrant.AcquireRequest, r reentrant.AcquireReply) string {
	switch {
	case r.Err != nil:
		return fmt.Sprintf("answer %s, error %v", word(r.Answer), r.Err)
	case r.Answer != held && r.Answer != busy && r.Answer != gone:
		return fmt.Sprintf("answer %s without an error", word(r.Answer))
	case r.Answer == gone && req.Depth == 1:
		return "gone, though it would be a new hold: want held or busy"
	case r.Answer == held && r.Fence <= 0:
		return fmt.Sprintf("held with fence %d, must be above 0", r.Fence)
	case r.Answer == busy && r.Left < 0:
		return fmt.Sprintf("busy with %v left", r.Left)
	}
	return ""
}

// want asks for a lock and wants that answer.
func (p *probe) want(answer reentrant.Answer, req reentrant.AcquireRequest) reentrant.AcquireReply {
	r := p.acquire(req)
	if r.Answer != answer {
		p.failf("acquire %s: %s, want %s", describe(req), word(r.Answer), word(answer))
	}
	return r
}

// ask is a request to take a lock for long, without a place in the queue.
func ask(name, owner string) reentrant.AcquireRequest {
	return reentrant.AcquireRequest{Name: name, Owner: owner, Depth: 1, TTL: long}
}

// take takes a free lock, or asks again, and returns the fence.
func (p *probe) take(name, owner string) int64 { return p.want(held, ask(name, owner)).Fence }

// enter takes a lock that is held already to a deeper hold.
func (p *probe) enter(name, owner string, depth int) int64 {
	req := ask(name, owner)
	req.Depth = depth
	return p.want(held, req).Fence
}

// seat waits for a lock that is busy.
func (p *probe) seat(name, owner string, life time.Duration) reentrant.AcquireReply {
	req := ask(name, owner)
	req.Seat = life
	return p.want(busy, req)
}

func (p *probe) renew(answer reentrant.Answer, name, owner string, fence int64) {
	p.renewFor(long, answer, name, owner, fence)
}

func (p *probe) renewFor(ttl time.Duration, answer reentrant.Answer, name, owner string, fence int64) {
	r := p.renewAll(reentrant.RenewRequest{Name: name, Owner: owner, Fence: fence, TTL: ttl})[0]
	if r.Answer != answer {
		p.failf("renew lock %q of %s with fence %d: %s, want %s", name, nick(owner), fence, word(r.Answer), word(answer))
	}
}

func (p *probe) renewAll(reqs ...reentrant.RenewRequest) []reentrant.HoldReply {
	replies := p.s.Renew(p.ctx, reqs)
	p.checkHolds("renew", len(reqs), replies)
	return replies
}

// release leaves a hold, or all with leave 0, and wants that answer.
func (p *probe) release(answer reentrant.Answer, name, owner string, leave int) {
	p.leave(answer, reentrant.ReleaseRequest{Name: name, Owner: owner, Leave: leave, TTL: long})
}

// giveUp frees what the owner holds of a lock, and its place in the queue.
func (p *probe) giveUp(answer reentrant.Answer, name, owner string) {
	p.leave(answer, reentrant.ReleaseRequest{Name: name, Owner: owner, TTL: long, GiveUp: true})
}

func (p *probe) leave(answer reentrant.Answer, req reentrant.ReleaseRequest) {
	r := p.releaseAll(req)[0]
	if r.Answer != answer {
		p.failf("release lock %q of %s to depth %d: %s, want %s", req.Name, nick(req.Owner), req.Leave, word(r.Answer), word(answer))
	}
}

func (p *probe) releaseAll(reqs ...reentrant.ReleaseRequest) []reentrant.HoldReply {
	replies := p.s.Release(p.ctx, reqs)
	p.checkHolds("release", len(reqs), replies)
	return replies
}

func (p *probe) checkHolds(verb string, n int, replies []reentrant.HoldReply) {
	if len(replies) != n {
		p.failf("%s of %d locks: %d replies", verb, n, len(replies))
	}
	for i, r := range replies {
		switch {
		case r.Err != nil:
			p.failf("%s lock %d of %d: answer %s, error %v", verb, i, n, word(r.Answer), r.Err)
		case r.Answer != held && r.Answer != busy && r.Answer != gone:
			p.failf("%s lock %d of %d: answer %s without an error", verb, i, n, word(r.Answer))
		}
	}
}

// isFree wants the lock to be held by nobody. It tells without taking it.
func (p *probe) isFree(name string) { p.release(gone, name, p.owner("nobody"), 0) }

// isTaken wants the lock to be held by somebody.
func (p *probe) isTaken(name string) { p.release(busy, name, p.owner("nobody"), 0) }

// holds wants the owner to be the holder, with that fence.
func (p *probe) holds(name, owner string, fence int64) { p.renew(held, name, owner, fence) }

// above wants a fence to be higher than one before.
func (p *probe) above(fence, before int64) {
	if fence <= before {
		p.failf("fence %d after %d, must grow", fence, before)
	}
}

func word(a reentrant.Answer) string {
	switch a {
	case reentrant.Unknown:
		return "unknown"
	case held:
		return "held"
	case busy:
		return "busy"
	case gone:
		return "gone"
	}
	return fmt.Sprintf("Answer(%d)", int(a))
}

func nick(owner string) string { return owner[strings.IndexByte(owner, '.')+1:] }

func describe(req reentrant.AcquireRequest) string {
	return fmt.Sprintf("lock %.40q for %s at depth %d", req.Name, nick(req.Owner), req.Depth)
}
