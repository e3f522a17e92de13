package locktest

import (
	"crypto/rand"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward/reentrant"
)

// Each single piece of news may be lost, but not all.
const (
	newsTries  = 3
	newsWithin = 2 * time.Second
)

// listen hears news for a client until the check ends, or stop is called.
func (p *probe) listen(client string, woken func(reentrant.Handover)) (stop func()) {
	end, err := p.s.Listen(p.ctx, client, woken)
	if err != nil {
		p.failf("listen: %v", err)
	}
	end = sync.OnceFunc(end)
	p.stops = append(p.stops, end)
	return end
}

// collect is listen into a channel.
func (p *probe) collect(client string) (news chan reentrant.Handover, stop func()) {
	news = make(chan reentrant.Handover, 1000) // more than a check hands over, so that it never blocks
	return news, p.listen(client, func(h reentrant.Handover) { news <- h })
}

// handOver makes owner the holder of a lock by a release, and returns its name.
func (p *probe) handOver(owner string) (name string) {
	// A name with all that a message might use to keep its parts apart.
	name = p.name() + " {x}:lock:y\n\x00|,;é"
	p.take(name, p.owner("ann"))
	p.seat(name, owner, long)
	p.release(held, name, p.owner("ann"), 0)
	return name
}

// next returns the news of the hand-over of a lock, or ok false if it is lost.
func (p *probe) next(news chan reentrant.Handover, name string) (h reentrant.Handover, ok bool) {
	timer := time.NewTimer(newsWithin)
	defer timer.Stop()
	for {
		select {
		case h := <-news:
			if h.Name == name {
				return h, true
			}
		case <-timer.C:
			return reentrant.Handover{}, false
		case <-p.ctx.Done():
			p.failf("waited for news")
		}
	}
}

var newsChecks = []check{
	{
		"brings news", "Listen tells a client which lock was handed to which of its owners, and the fence of that grant.",
		func(p *probe) {
			bob := p.owner("bob")
			news, _ := p.collect(p.client)
			for range newsTries {
				name := p.handOver(bob)
				if h, ok := p.next(news, name); ok {
					if h.Owner != bob {
						p.failf("news for owner %q, want %q", h.Owner, bob)
					}
					if fence := p.take(name, bob); h.Fence != fence {
						p.failf("news of fence %d, the owner holds the lock with fence %d", h.Fence, fence)
					}
					return
				}
			}
			p.failf("no news of %d hand-overs", newsTries)
		},
	},
	{
		"tells old news from new", "If busy names a fence to an owner that takes or has a seat, no grant so far has passed it, and every later one does.",
		func(p *probe) {
			ann, bob := p.owner("ann"), p.owner("bob")
			for range 3 {
				name := p.name()
				last := p.take(name, ann)
				for range 2 {
					named := p.seat(name, bob, long).Fence
					if named == 0 {
						return // nothing is promised
					}
					if named < last {
						p.failf("busy names fence %d, the holder has %d", named, last)
					}
					p.release(held, name, ann, 0) // to bob
					last = p.take(name, bob)
					p.above(last, named)
					ann, bob = bob, ann
				}
			}
		},
	},
	{
		"brings news to whom it concerns", "A client hears of its own owners only, while others listen as well.",
		func(p *probe) {
			other := rand.Text()
			ours, _ := p.collect(p.client)
			theirs, _ := p.collect(other)
			for range newsTries {
				mine, their := p.handOver(p.owner("bob")), p.handOver(other+".bob")
				// Anything in the wrong place ends the check, whatever is lost.
				for _, l := range []struct {
					news        chan reentrant.Handover
					name, alien string
				}{{ours, mine, their}, {theirs, their, mine}} {
					timer := time.NewTimer(newsWithin)
					for heard := false; !heard; {
						select {
						case h := <-l.news:
							if h.Name == l.alien {
								p.failf("a client was told of the owner %q of another", h.Owner)
							}
							heard = h.Name == l.name
						case <-timer.C:
							heard = true // lost
						}
					}
					timer.Stop()
				}
			}
		},
	},
	{
		"stops bringing news", "Once stop has returned, nothing more is told.",
		func(p *probe) {
			other := rand.Text()
			var stopped atomic.Bool
			told := make(chan reentrant.Handover, 1000)
			stop := p.listen(p.client, func(h reentrant.Handover) {
				if stopped.Load() {
					told <- h
				}
			})
			control, _ := p.collect(other)
			stop()
			stopped.Store(true)
			for range newsTries {
				p.handOver(p.owner("bob"))
				p.next(control, p.handOver(other+".bob")) // takes as long as news takes
			}
			select {
			case h := <-told:
				p.failf("told of lock %q after stop", h.Name)
			default:
			}
		},
	},
	{
		"waits for the last news", "Stop returns when no call of woken is under way.",
		func(p *probe) {
			entered, leave := make(chan struct{}, 1000), make(chan struct{})
			stop := p.listen(p.client, func(reentrant.Handover) {
				entered <- struct{}{}
				<-leave
			})
			open := func() { close(leave) }
			defer func() { open() }()
			for try := 1; ; try++ {
				p.handOver(p.owner(fmt.Sprint("bob", try)))
				select {
				case <-entered:
				case <-time.After(newsWithin):
					if try == newsTries {
						p.failf("no news of %d hand-overs", newsTries)
					}
					continue
				}
				break
			}
			ended := make(chan struct{})
			go func() { stop(); close(ended) }()
			select {
			case <-ended:
				p.failf("stop returned while woken was called")
			case <-time.After(100 * time.Millisecond):
			}
			open()
			open = func() {}
			<-ended
		},
	},
}
