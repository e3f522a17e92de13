package locktest

import (
	"fmt"
	"time"

	"github.com/onceward/onceward/reentrant"
)

// answers compares replies with what is wanted of each.
func (p *probe) answers(what string, got []reentrant.Answer, want ...reentrant.Answer) {
	if len(got) != len(want) {
		p.failf("%s: %d answers, want %d", what, len(got), len(want))
	}
	for i := range want {
		if got[i] != want[i] {
			p.failf("%s: answer %d of %d is %s, want %s", what, i, len(got), word(got[i]), word(want[i]))
		}
	}
}

func acquired(replies []reentrant.AcquireReply) []reentrant.Answer {
	all := make([]reentrant.Answer, len(replies))
	for i, r := range replies {
		all[i] = r.Answer
	}
	return all
}

func answersOf(replies []reentrant.HoldReply) []reentrant.Answer {
	all := make([]reentrant.Answer, len(replies))
	for i, r := range replies {
		all[i] = r.Answer
	}
	return all
}

var batchChecks = []check{
	{
		"answers in order", "A call serves many locks and answers for each, in the order of the requests.",
		func(p *probe) {
			ann, bob := p.owner("ann"), p.owner("bob")
			fences := map[string]int64{}
			for _, name := range []string{"b", "d"} {
				fences[name] = p.take(name, ann)
			}
			deeper := ask("e", bob)
			deeper.Depth = 2
			replies := p.acquireAll(ask("a", bob), ask("b", bob), ask("c", bob), ask("d", bob), deeper)
			p.answers("acquire", acquired(replies), held, busy, held, busy, gone)
			renew := func(name, owner string, fence int64) reentrant.RenewRequest {
				return reentrant.RenewRequest{Name: name, Owner: owner, Fence: fence, TTL: long}
			}
			p.answers("renew", answersOf(p.renewAll(
				renew("e", bob, 1), renew("a", bob, replies[0].Fence), renew("b", bob, fences["b"]), renew("b", ann, fences["b"]), renew("c", bob, replies[2].Fence),
			)), gone, held, busy, held, held)
			release := func(name, owner string) reentrant.ReleaseRequest {
				return reentrant.ReleaseRequest{Name: name, Owner: owner, TTL: long}
			}
			p.answers("release", answersOf(p.releaseAll(
				release("d", bob), release("c", bob), release("e", ann), release("d", ann), release("a", bob),
			)), busy, held, gone, held, held)
			p.isTaken("b")
			for _, name := range []string{"a", "c", "d", "e"} {
				p.isFree(name)
			}
		},
	},
	{
		"serves one lock twice", "Requests of one call for one lock take effect in their order.",
		func(p *probe) {
			ann, bob := p.owner("ann"), p.owner("bob")
			second, third := ask("a", ann), ask("a", ann)
			second.Depth, third.Depth = 2, 3
			replies := p.acquireAll(ask("a", ann), ask("a", bob), ask("a", ann), second, third, ask("b", bob), ask("b", ann))
			p.answers("acquire", acquired(replies), held, busy, held, held, held, held, busy)
			fence := replies[0].Fence
			for i := 2; i < 5; i++ {
				if replies[i].Fence != fence {
					p.failf("fence of request %d = %d, want that of the first, %d", i, replies[i].Fence, fence)
				}
			}
			renew := func(owner string, fence int64) reentrant.RenewRequest {
				return reentrant.RenewRequest{Name: "a", Owner: owner, Fence: fence, TTL: long}
			}
			p.answers("renew", answersOf(p.renewAll(renew(ann, fence), renew(bob, fence), renew(ann, fence), renew(ann, fence+1))), held, busy, held, busy)
			release := func(name, owner string, leave int) reentrant.ReleaseRequest {
				return reentrant.ReleaseRequest{Name: name, Owner: owner, Leave: leave, TTL: long}
			}
			p.answers("release", answersOf(p.releaseAll(
				release("a", ann, 2), release("a", bob, 0), release("a", ann, 1), release("a", ann, 0), release("a", ann, 0), release("b", bob, 0),
			)), held, busy, held, held, gone, held)
			p.isFree("a")
			p.isFree("b")
		},
	},
	{
		"keeps requests apart", "Each request of a call has its own TTL, its own seat and its own hint.",
		func(p *probe) {
			ann, bob, cid := p.owner("ann"), p.owner("bob"), p.owner("cid")
			waits := func(req reentrant.AcquireRequest) reentrant.AcquireRequest {
				req.Seat = long
				return req
			}
			replies := p.acquireAll(ask("a", ann), askFor(short, "b", ann), ask("c", ann), hint("d", ann, ahead), ask("e", ann), askFor(short, "f", ann))
			p.answers("acquire", acquired(replies), held, held, held, held, held, held)
			p.renewAll(
				reentrant.RenewRequest{Name: "e", Owner: ann, Fence: replies[4].Fence, TTL: short},
				reentrant.RenewRequest{Name: "c", Owner: ann, Fence: replies[2].Fence, TTL: long},
			)
			p.releaseAll(
				reentrant.ReleaseRequest{Name: "d", Owner: ann, Leave: 1, TTL: short},
				reentrant.ReleaseRequest{Name: "c", Owner: ann, Leave: 1, TTL: long},
			)
			since := time.Now()
			p.answers("acquire", acquired(p.acquireAll(waits(ask("a", bob)), ask("c", bob))), busy, busy)
			for _, name := range []string{"b", "d", "e", "f"} {
				p.await(name, cid, since, short)
			}
			p.want(busy, ask("a", cid))
			p.want(busy, ask("c", cid))
			p.release(held, "c", ann, 0)
			p.isFree("c")
			p.release(held, "a", ann, 0)
			p.isTaken("a")
		},
	},
	{
		"serves very many", "A call may have any number of requests, none among them.",
		func(p *probe) {
			p.acquireAll()
			p.renewAll()
			p.releaseAll()
			const n = 300
			ann, bob := p.owner("ann"), p.owner("bob")
			acquires, renewals, releases := make([]reentrant.AcquireRequest, n), make([]reentrant.RenewRequest, n), make([]reentrant.ReleaseRequest, n)
			rivals, want := make([]reentrant.AcquireRequest, n), make([]reentrant.Answer, n)
			for i := range n {
				name := fmt.Sprint("order:", i)
				ttl := long + time.Duration(i%3)*time.Second // stores may put equal ones together
				acquires[i], rivals[i] = askFor(ttl, name, ann), askFor(ttl, name, bob)
				releases[i] = reentrant.ReleaseRequest{Name: name, Owner: ann, TTL: ttl}
				renewals[i] = reentrant.RenewRequest{Name: name, Owner: ann, TTL: ttl}
				want[i] = busy
			}
			p.acquireAll(rivals[n/2])
			for i, r := range p.acquireAll(acquires...) {
				renewals[i].Fence = r.Fence
				if (r.Answer == held) != (i != n/2) {
					p.failf("acquire %d of %d: %s", i, n, word(r.Answer))
				}
			}
			p.answers("acquire of held ones", acquired(p.acquireAll(append(rivals[:n/2:n/2], rivals[n/2+1:]...)...)), want[1:]...)
			for i := range want {
				want[i] = held
			}
			want[n/2] = busy
			p.answers("renew", answersOf(p.renewAll(renewals...)), want...)
			p.answers("release", answersOf(p.releaseAll(releases...)), want...)
			for i := range want {
				want[i] = gone
			}
			want[n/2] = busy
			p.answers("release again", answersOf(p.releaseAll(releases...)), want...)
		},
	},
}
