package locktest

var replayChecks = []check{
	{
		"repeats acquire", "An acquire may take effect twice: the second is answered as the first, and one release frees the lock.",
		func(p *probe) {
			ann := p.owner("ann")
			fence := p.take("a", ann)
			for range 3 {
				if again := p.take("a", ann); again != fence {
					p.failf("fence %d, repeated %d", fence, again)
				}
			}
			p.release(held, "a", ann, 0)
			p.isFree("a")
		},
	},
	{
		"repeats enter", "An enter may take effect twice, and an earlier one late: each hold is given back once.",
		func(p *probe) {
			ann, bob := p.owner("ann"), p.owner("bob")
			fence := p.take("a", ann)
			for _, depth := range []int{2, 2, 3, 3, 2, 1, 3} {
				if again := p.enter("a", ann, depth); again != fence {
					p.failf("fence %d, at depth %d %d", fence, depth, again)
				}
			}
			for _, leave := range []int{2, 1} {
				p.release(held, "a", ann, leave)
				p.want(busy, ask("a", bob))
			}
			p.release(held, "a", ann, 0)
			p.isFree("a")
		},
	},
	{
		"repeats leave", "Leaving a hold may take effect twice: it takes back no hold but one.",
		func(p *probe) {
			ann := p.owner("ann")
			fence := p.take("a", ann)
			p.enter("a", ann, 2)
			p.enter("a", ann, 3)
			for _, leave := range []int{2, 2, 2, 1, 1, 2} {
				p.release(held, "a", ann, leave)
				p.holds("a", ann, fence)
			}
			p.release(held, "a", ann, 0)
			p.isFree("a")
		},
	},
	{
		"repeats renew", "A renewal may take effect twice, or after the release: it never makes a hold.",
		func(p *probe) {
			ann := p.owner("ann")
			fence := p.take("a", ann)
			p.renew(held, "a", ann, fence)
			p.renew(held, "a", ann, fence)
			p.release(held, "a", ann, 0)
			p.renew(gone, "a", ann, fence)
			p.isFree("a")
		},
	},
	{
		"repeats release", "The last release may take effect twice: the second finds nobody and touches nothing.",
		func(p *probe) {
			ann, bob := p.owner("ann"), p.owner("bob")
			p.take("a", ann)
			p.release(held, "a", ann, 0)
			p.release(gone, "a", ann, 0)
			p.release(gone, "a", ann, 0)
			p.take("a", bob)
		},
	},
	{
		"late release is harmless", "A copy of a release that arrives late never touches a newer hold: not its depth, not its fence, not its TTL.",
		func(p *probe) {
			ann, bob, cid := p.owner("ann"), p.owner("bob"), p.owner("cid")
			p.take("a", ann)
			p.release(held, "a", ann, 0)
			fence := p.take("a", bob)
			p.enter("a", bob, 2)
			p.release(busy, "a", ann, 0)
			p.release(busy, "a", ann, 1)
			p.giveUp(busy, "a", ann)
			p.holds("a", bob, fence)
			p.release(held, "a", bob, 1)
			p.want(busy, ask("a", cid))
			p.release(held, "a", bob, 0)
			p.isFree("a")
		},
	},
	{
		"late acquire is harmless", "A copy of an acquire or enter that arrives late never touches a newer hold. On a free lock it is a new grant, with a higher fence, and the old grant is not renewed by it.",
		func(p *probe) {
			ann, bob := p.owner("ann"), p.owner("bob")
			old := p.take("a", ann)
			p.release(held, "a", ann, 0)
			fence := p.take("a", bob)
			p.want(busy, ask("a", ann))
			deeper := ask("a", ann)
			deeper.Depth = 2
			p.want(gone, deeper)
			p.holds("a", bob, fence)
			p.release(held, "a", bob, 0)
			p.isFree("a")

			again := p.take("a", ann)
			p.above(again, fence)
			p.renew(busy, "a", ann, old)
			p.holds("a", ann, again)
		},
	},
}
