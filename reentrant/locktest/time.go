package locktest

import (
	"time"

	"github.com/onceward/onceward/reentrant"
)

// askFor asks for a lock with another TTL than long.
func askFor(ttl time.Duration, name, owner string) reentrant.AcquireRequest {
	req := ask(name, owner)
	req.TTL = ttl
	return req
}

// await asks for a lock until it is granted. A lease that was made, or renewed for the
// last time, before since must not be in the way of a question that is sent ttl later.
func (p *probe) await(name, owner string, since time.Time, ttl time.Duration) reentrant.AcquireReply {
	for {
		sent := time.Now()
		r := p.acquire(ask(name, owner))
		if r.Answer == held {
			return r
		}
		if late := sent.Sub(since.Add(ttl)); late > tick {
			p.failf("lock %q is busy, %v after the lease of %v should have ended", name, late, ttl)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

var timeChecks = []check{
	{
		"ends a hold after its TTL", "A hold that is not renewed ends after its TTL, by the store's clock, and not a tenth of it sooner: until then its holder trusts it.",
		func(p *probe) {
			ann, bob := p.owner("ann"), p.owner("bob")
			sent := time.Now()
			fence := p.want(held, askFor(short, "a", ann)).Fence
			p.await("a", bob, time.Now(), short)
			if got := time.Since(sent); got < short*9/10 {
				p.failf("a lease of %v ended after %v", short, got)
			}
			p.renew(busy, "a", ann, fence)
			p.release(busy, "a", ann, 0)
		},
	},
	{
		"gives a full TTL each time", "Each acquire, enter, leave and renewal of its owner makes the lease last for the TTL in it, from then on.",
		func(p *probe) {
			ann, bob := p.owner("ann"), p.owner("bob")
			brief := func(name string, depth int) int64 {
				req := askFor(short, name, ann)
				req.Depth = depth
				return p.want(held, req).Fence
			}
			var names []string
			for _, step := range []func(name string){
				func(name string) { p.take(name, ann) },
				func(name string) { p.enter(name, ann, 2) },
				func(name string) { brief(name, 2); p.release(held, name, ann, 1) },
				func(name string) { p.renew(held, name, ann, brief(name, 1)) },
			} {
				var last string
				p.timely(short*9/10, func(name string) {
					last = name
					brief(name, 1)
					step(name)
				})
				names = append(names, last)
			}
			p.sleep(2 * short)
			for _, name := range names {
				p.want(busy, ask(name, bob))
			}
		},
	},
	{
		"renews the grant that is meant", "A renewal compares owner and fence: it makes no other hold last longer, and says whose the lock is.",
		func(p *probe) {
			ann, bob := p.owner("ann"), p.owner("bob")
			var last string
			var granted time.Time
			p.timely(short*9/10, func(name string) {
				fence := p.want(held, askFor(short, name, ann)).Fence
				last, granted = name, time.Now()
				p.renew(busy, name, bob, fence)
				p.renew(busy, name, ann, fence-1)
				p.renew(busy, name, ann, fence+1)
				p.want(busy, ask(name, bob))
			})
			p.await(last, bob, granted, short)
			p.renew(gone, "free", ann, 1)
			p.isFree("free")
		},
	},
}
