package locktest

import (
	"time"

	"github.com/onceward/onceward/reentrant"
)

// handoverSteps is how long steps with a lock that was handed over may take: its owner
// has it for HandoverTTL only, until it asks.
const handoverSteps = reentrant.HandoverTTL * 9 / 10

var queueChecks = []check{
	{
		"hands over in order", "A release gives the lock to the owner whose seat is the oldest. Asking again keeps the place.",
		func(p *probe) {
			ann := p.owner("ann")
			waiting := []string{p.owner("bob"), p.owner("cid"), p.owner("dan")}
			p.timely(handoverSteps, func(name string) {
				p.take(name, ann)
				for _, owner := range waiting {
					p.seat(name, owner, long)
				}
				for _, owner := range []string{waiting[2], waiting[0], waiting[1], waiting[0]} {
					p.seat(name, owner, long)
				}
				p.release(held, name, ann, 0)
				for i, owner := range waiting {
					p.isTaken(name)
					for _, other := range append(waiting[i+1:len(waiting):len(waiting)], ann) {
						p.want(busy, ask(name, other))
					}
					p.take(name, owner)
					p.release(held, name, owner, 0)
				}
				p.isFree(name)
			})
		},
	},
	{
		"hands over with the last hold", "A hold that is left behind keeps the lock from those who wait.",
		func(p *probe) {
			ann, bob := p.owner("ann"), p.owner("bob")
			p.timely(handoverSteps, func(name string) {
				fence := p.take(name, ann)
				p.enter(name, ann, 2)
				p.enter(name, ann, 3)
				p.seat(name, bob, long)
				p.release(held, name, ann, 1)
				p.holds(name, ann, fence)
				p.seat(name, bob, long)
				p.enter(name, ann, 2)
				p.release(held, name, ann, 0)
				p.renew(busy, name, ann, fence)
				p.take(name, bob)
			})
		},
	},
	{
		"hands over before it is asked", "A lock that somebody waits for is never free in between: the release itself makes the next one its holder.",
		func(p *probe) {
			ann, bob := p.owner("ann"), p.owner("bob")
			p.timely(handoverSteps, func(name string) {
				p.take(name, ann)
				p.seat(name, bob, long)
				p.release(held, name, ann, 0)
				p.isTaken(name)
				p.release(held, name, bob, 0)
				p.isFree(name)
			})
		},
	},
	{
		"hands over for a short time", "The owner that is handed a lock may be dead: the lock ends by itself, within the TTL it asked for and HandoverTTL, and goes to the next one.",
		func(p *probe) {
			ann, bob, cid := p.owner("ann"), p.owner("bob"), p.owner("cid")
			p.timely(handoverSteps, func(name string) {
				p.take(name, ann)
				p.seat(name, bob, long)
				p.release(held, name, ann, 0)
				if left := p.want(busy, ask(name, cid)).Left; left > reentrant.HandoverTTL {
					p.failf("handed over with %v left, want at most %v", left, reentrant.HandoverTTL)
				}
			})
			var last string
			var handed time.Time
			p.timely(short*9/10, func(name string) {
				p.take(name, ann)
				req := askFor(short, name, bob)
				req.Seat = long
				p.want(busy, req)
				p.seat(name, cid, long)
				p.release(held, name, ann, 0)
				p.isTaken(name)
				last, handed = name, time.Now()
			})
			// Busy for others until then, and busy for others after it: cid is the next.
			p.await(last, cid, handed, short)
			p.want(busy, ask(last, ann))
		},
	},
	{
		"lasts longer once it is taken", "The owner that was handed a lock makes it last for its full TTL by a renewal, or by asking again.",
		func(p *probe) {
			ann, bob, cid := p.owner("ann"), p.owner("bob"), p.owner("cid")
			var names []string
			for _, step := range []func(name string){
				func(name string) { p.take(name, bob) },
				func(name string) { p.renew(held, name, bob, p.want(held, askFor(short, name, bob)).Fence) },
			} {
				var last string
				p.timely(short*9/10, func(name string) {
					last = name
					p.take(name, ann)
					req := askFor(short, name, bob)
					req.Seat = long
					p.want(busy, req)
					p.release(held, name, ann, 0)
					step(name)
				})
				names = append(names, last)
			}
			p.sleep(2 * short)
			for _, name := range names {
				p.want(busy, ask(name, cid))
			}
		},
	},
	{
		"nobody jumps the queue", "A lock that ended by its TTL is kept for the owner whose seat is the oldest: for others it is busy, though nobody holds it.",
		func(p *probe) {
			ann, bob, cid := p.owner("ann"), p.owner("bob"), p.owner("cid")
			var last string
			p.timely(short*9/10, func(name string) {
				last = name
				p.want(held, askFor(short, name, ann))
				p.seat(name, bob, long)
			})
			p.sleep(2 * short)
			p.want(busy, ask(last, cid))
			p.seat(last, cid, long)
			p.want(busy, ask(last, ann))
			p.take(last, bob)
			p.release(held, last, bob, 0)
			p.isTaken(last)
		},
	},
	{
		"passes over dead seats", "A seat is kept for as long as its owner asked, from when it last asked. After that the owner is taken for dead.",
		func(p *probe) {
			ann, bob, cid := p.owner("ann"), p.owner("bob"), p.owner("cid")
			p.timely(handoverSteps, func(name string) {
				p.take(name, ann)
				p.seat(name, bob, short)
				p.seat(name, cid, short)
				p.seat(name, cid, long)
				p.sleep(2 * short)
				p.release(held, name, ann, 0)
				p.want(busy, ask(name, bob))
				p.take(name, cid)
				p.release(held, name, cid, 0)
				p.isFree(name)
			})
		},
	},
	{
		"takes no seat unasked", "A request without a seat leaves nothing behind, and the seat of an owner is gone once it holds the lock.",
		func(p *probe) {
			ann, bob, cid := p.owner("ann"), p.owner("bob"), p.owner("cid")
			p.take("a", ann)
			p.want(busy, ask("a", bob))
			p.release(held, "a", ann, 0)
			p.isFree("a")
			p.timely(handoverSteps, func(name string) {
				p.take(name, ann)
				p.seat(name, bob, long)
				p.release(held, name, ann, 0)
				p.take(name, bob)
				p.want(busy, ask(name, cid))
				p.release(held, name, bob, 0)
				p.isFree(name)
			})
		},
	},
	{
		"gives up a seat", "An owner that gives up is not handed the lock, and the holder is not concerned.",
		func(p *probe) {
			ann, bob, cid := p.owner("ann"), p.owner("bob"), p.owner("cid")
			fence := p.take("a", ann)
			p.seat("a", bob, long)
			p.giveUp(busy, "a", bob)
			p.giveUp(busy, "a", bob)
			p.holds("a", ann, fence)
			p.release(held, "a", ann, 0)
			p.isFree("a")
			p.giveUp(gone, "a", bob)
			p.take("a", cid)
		},
	},
	{
		"gives up what it was handed", "An owner that gives up after the lock was handed to it frees it, or hands it to the next one.",
		func(p *probe) {
			ann, bob, cid := p.owner("ann"), p.owner("bob"), p.owner("cid")
			p.timely(handoverSteps, func(name string) {
				p.take(name, ann)
				p.seat(name, bob, long)
				p.seat(name, cid, long)
				p.release(held, name, ann, 0)
				p.giveUp(held, name, bob)
				p.isTaken(name)
				p.take(name, cid)
				p.seat(name, bob, long)
				p.release(held, name, cid, 0)
				p.giveUp(held, name, bob)
				p.isFree(name)
			})
		},
	},
}
