package locktest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward/reentrant"
)

var holdChecks = []check{
	{
		"excludes", "While an owner holds a lock, acquire answers busy to all others. Other locks are not concerned. A release lets the next one in.",
		func(p *probe) {
			ann, bob := p.owner("ann"), p.owner("bob")
			p.take("a", ann)
			p.want(busy, ask("a", bob))
			p.take("b", bob)
			p.want(busy, ask("b", ann))
			p.release(held, "a", ann, 0)
			p.isFree("a")
			p.take("a", bob)
			p.want(busy, ask("a", ann))
		},
	},
	{
		"knows owners apart", "Owners of one client exclude each other as those of different clients do, and an owner is the whole of its text.",
		func(p *probe) {
			owner := p.owner("1")
			fence := p.take("a", owner)
			for _, other := range []string{p.owner("2"), owner + "1", strings.TrimSuffix(owner, "1"), strings.ToUpper(owner) + "x", "other.1"} {
				p.want(busy, ask("a", other))
				p.renew(busy, "a", other, fence)
				p.release(busy, "a", other, 0)
			}
			p.holds("a", owner, fence)
		},
	},
	{
		"forgets an owner that released", "After its release an owner is nobody: it cannot renew or release the lock, free or held by another.",
		func(p *probe) {
			ann, bob := p.owner("ann"), p.owner("bob")
			fence := p.take("a", ann)
			p.release(held, "a", ann, 0)
			p.renew(gone, "a", ann, fence)
			p.release(gone, "a", ann, 0)
			next := p.take("a", bob)
			p.renew(busy, "a", ann, fence)
			p.renew(busy, "a", ann, next)
			p.release(busy, "a", ann, 0)
			p.holds("a", bob, next)
		},
	},
	{
		"counts depth", "An owner enters a lock as deep as it asks, and the lock is free only when depth 0 is left behind.",
		func(p *probe) {
			ann, bob := p.owner("ann"), p.owner("bob")
			fence := p.take("a", ann)
			for depth := 2; depth <= 5; depth++ {
				p.enter("a", ann, depth)
			}
			for leave := 4; leave >= 1; leave-- {
				p.release(held, "a", ann, leave)
				p.want(busy, ask("a", bob))
				p.holds("a", ann, fence)
			}
			p.release(held, "a", ann, 0)
			p.isFree("a")
		},
	},
	{
		"frees at any depth", "Leaving depth 0 frees the lock, whatever depth it has: an enter whose reply was lost may have left it one too high.",
		func(p *probe) {
			ann := p.owner("ann")
			p.take("a", ann)
			p.enter("a", ann, 2)
			p.enter("a", ann, 3)
			p.release(held, "a", ann, 0)
			p.isFree("a")
		},
	},
	{
		"never enters anew", "A deeper hold of a lock that its owner does not hold is gone: re-entry never makes a new hold.",
		func(p *probe) {
			ann, bob := p.owner("ann"), p.owner("bob")
			deeper := ask("a", ann)
			deeper.Depth = 2
			p.want(gone, deeper) // never held
			p.isFree("a")
			p.take("a", ann)
			p.release(held, "a", ann, 0)
			p.want(gone, deeper) // released
			p.isFree("a")
			fence := p.take("a", bob)
			p.want(gone, deeper) // another's by now
			p.holds("a", bob, fence)
		},
	},
	{
		"tells what is left", "Busy tells how long the lease in the way lasts if it is not renewed, or 0 if that is not known.",
		func(p *probe) {
			ann, bob := p.owner("ann"), p.owner("bob")
			since := time.Now()
			p.take("a", ann)
			for range 3 {
				left := p.want(busy, ask("a", bob)).Left
				least := long - time.Since(since) - tick/100
				if left != 0 && (left > long || left < least) {
					p.failf("busy with %v left, want between %v and %v", left, least, long)
				}
			}
		},
	},
	{
		"takes any name", "A name is any text of up to MaxNameBytes, and different names are different locks.",
		func(p *probe) {
			names := []string{
				"a", "A", "a ", " a", "a b", "a:b", "{a}", "}{", "}:lock:a", "a\n", "a\x00b", "\xff\xfe", "*", "a*", "@fence", "замок", "锁",
				strings.Repeat("x", reentrant.MaxNameBytes), strings.Repeat("x", reentrant.MaxNameBytes-1),
			}
			fences := map[string]int64{}
			for i, name := range names {
				fences[name] = p.take(name, p.owner(fmt.Sprint(i)))
			}
			for i, name := range names {
				p.holds(name, p.owner(fmt.Sprint(i)), fences[name])
				p.release(held, name, p.owner(fmt.Sprint(i)), 0)
				p.isFree(name)
			}
		},
	},
	{
		"groups by name", "The group of a lock depends on its name alone.",
		func(p *probe) {
			for i := range 20 {
				name := fmt.Sprint("order:", i)
				first := p.s.Group(name)
				p.take(name, p.owner("ann"))
				if again := p.s.Group(name); again != first {
					p.failf("group of %q = %q, and %q the second time", name, first, again)
				}
			}
		},
	},
	{
		"serves many at once", "Methods are called concurrently: one holder at a time, each with a higher fence than those before.",
		func(p *probe) {
			const names, workers, rounds = 4, 4, 10 // workers for each name
			var inside [names]atomic.Int32
			var last [names]atomic.Int64
			var wg sync.WaitGroup
			var failed atomic.Bool // else the others would wait for a lock that nobody frees
			errs := make(chan error, names*workers)
			for i := range names * workers {
				wg.Go(func() {
					name, n := fmt.Sprint("lock ", i%names), i%names
					err := p.catch(func() {
						for round := range rounds {
							owner := p.owner(fmt.Sprint(i, ".", round))
							r := p.acquire(ask(name, owner))
							for ; r.Answer != held; r = p.acquire(ask(name, owner)) {
								if p.ctx.Err() != nil {
									p.failf("waited for lock %q", name)
								}
								if failed.Load() {
									return
								}
							}
							if in := inside[n].Add(1); in != 1 {
								p.failf("%d holders of lock %q", in, name)
							}
							p.above(r.Fence, last[n].Swap(r.Fence))
							p.holds(name, owner, r.Fence)
							inside[n].Add(-1)
							p.release(held, name, owner, 0)
						}
					})
					if err != nil {
						failed.Store(true)
					}
					errs <- err
				})
			}
			wg.Wait()
			for range names * workers {
				if err := <-errs; err != nil {
					panic(failure{err})
				}
			}
		},
	},
	{
		"answers though ctx is over", "When ctx has ended a call returns, with a reply for each request: an answer, or unknown with an error. A lock that was granted then is its owner's.",
		func(p *probe) {
			ctx, cancel := context.WithCancel(p.ctx)
			cancel()
			ann := p.owner("ann")
			reqs := []reentrant.AcquireRequest{ask("a", ann), ask("b", ann)}
			replies := p.s.Acquire(ctx, reqs)
			if len(replies) != len(reqs) {
				p.failf("acquire of %d locks: %d replies", len(reqs), len(replies))
			}
			for i, r := range replies {
				if why := badAcquire(reqs[i], r); why != "" && !(r.Answer == reentrant.Unknown && r.Err != nil) {
					p.failf("acquire %s: %s", describe(reqs[i]), why)
				}
				if r.Answer == held {
					p.holds(reqs[i].Name, ann, r.Fence)
				}
			}
			renewed := p.s.Renew(ctx, []reentrant.RenewRequest{{Name: "a", Owner: ann, Fence: 1, TTL: long}})
			released := p.s.Release(ctx, []reentrant.ReleaseRequest{{Name: "a", Owner: ann, TTL: long}})
			for verb, replies := range map[string][]reentrant.HoldReply{"renew": renewed, "release": released} {
				if len(replies) != 1 {
					p.failf("%s of one lock: %d replies", verb, len(replies))
				}
				if r := replies[0]; (r.Answer == reentrant.Unknown) != (r.Err != nil) {
					p.failf("%s: answer %s, error %v", verb, word(r.Answer), r.Err)
				}
			}
		},
	},
}
