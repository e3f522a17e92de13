package locktest

import (
	"time"

	"github.com/onceward/onceward/reentrant"
)

// ahead is how far a hint is above the fences known so far: further than a clock gets
// while a check runs.
const ahead = int64(time.Hour / time.Microsecond)

// hint is ask with a fence that the next grant must have at least.
func hint(name, owner string, least int64) reentrant.AcquireRequest {
	req := ask(name, owner)
	req.FenceAtLeast = least
	return req
}

var fenceChecks = []check{
	{
		"fence grows", "Each grant has a higher fence than all grants of that lock before, whatever way they ended.",
		func(p *probe) {
			ann, bob := p.owner("ann"), p.owner("bob")
			var last int64
			for range 3 { // released
				for _, owner := range []string{ann, bob} {
					fence := p.take("a", owner)
					p.above(fence, last)
					last = fence
					p.release(held, "a", owner, 0)
				}
			}
			fence := p.want(held, askFor(short, "a", ann)).Fence // over
			p.above(fence, last)
			p.above(p.await("a", bob, time.Now(), short).Fence, fence)
		},
	},
	{
		"fence grows over a hand-over", "A lock that is handed over has a higher fence than its holder had before, and so has one that was handed over and not taken.",
		func(p *probe) {
			ann, bob, cid := p.owner("ann"), p.owner("bob"), p.owner("cid")
			p.timely(reentrant.HandoverTTL, func(name string) {
				first := p.take(name, ann)
				p.seat(name, bob, long)
				p.seat(name, cid, long)
				p.release(held, name, ann, 0)
				second := p.take(name, bob)
				p.above(second, first)
				p.release(held, name, bob, 0)
				third := p.take(name, cid)
				p.above(third, second)
				p.renew(busy, name, bob, second)
				p.release(held, name, cid, 0)
				p.above(p.take(name, ann), third)
			})
		},
	},
	{
		"re-entry keeps the fence", "An enter, a leave and a renewal change no fence.",
		func(p *probe) {
			ann := p.owner("ann")
			fence := p.take("a", ann)
			for depth := 2; depth <= 4; depth++ {
				if got := p.enter("a", ann, depth); got != fence {
					p.failf("fence at depth %d = %d, want %d", depth, got, fence)
				}
			}
			p.release(held, "a", ann, 2)
			p.holds("a", ann, fence)
			if got := p.take("a", ann); got != fence {
				p.failf("fence after a leave and a renewal = %d, want %d", got, fence)
			}
		},
	},
	{
		"fence passes the hint", "A grant has at least the fence that was asked for, and one that is asked for less grows as ever.",
		func(p *probe) {
			ann, bob := p.owner("ann"), p.owner("bob")
			first := p.take("a", ann)
			p.release(held, "a", ann, 0)
			second := p.want(held, hint("a", bob, first+ahead)).Fence
			if second < first+ahead {
				p.failf("fence %d, asked for at least %d", second, first+ahead)
			}
			p.release(held, "a", bob, 0)
			third := p.want(held, hint("a", ann, 1)).Fence
			p.above(third, second)
			p.release(held, "a", ann, 0)
			p.above(p.take("a", bob), third)
		},
	},
	{
		"a busy lock keeps the hint", "The next grant has at least the fence that was asked for, though that request was answered with busy, and whoever gets it.",
		func(p *probe) {
			ann, bob := p.owner("ann"), p.owner("bob")
			first := p.take("a", ann)
			p.want(busy, hint("a", bob, first+ahead))
			if again := p.take("a", ann); again != first {
				p.failf("fence of the holder = %d, was %d", again, first)
			}
			p.release(held, "a", ann, 0)
			if next := p.take("a", ann); next < first+ahead {
				p.failf("fence %d, asked for at least %d", next, first+ahead)
			}
		},
	},
	{
		"a hand-over keeps the hint", "A lock that is handed over has at least the fence that anybody asked for while it was busy.",
		func(p *probe) {
			ann, bob, cid := p.owner("ann"), p.owner("bob"), p.owner("cid")
			p.timely(reentrant.HandoverTTL, func(name string) {
				first := p.take(name, ann)
				waiting := hint(name, bob, first+ahead)
				waiting.Seat = long
				p.want(busy, waiting)
				p.want(busy, hint(name, cid, first+2*ahead))
				p.release(held, name, ann, 0)
				if next := p.take(name, bob); next < first+2*ahead {
					p.failf("fence of the hand-over = %d, asked for at least %d", next, first+2*ahead)
				}
			})
		},
	},
}
