package locktest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/devstack/devtest"
	"github.com/onceward/onceward/reentrant"
)

// Stores with one fault each, and the checks that must find it.
var brokenStores = []struct {
	name   string
	caught []string
	fault  func(f *faulty)
}{
	{"grants what is held", []string{"excludes"}, func(f *faulty) {
		f.acquire = func(req reentrant.AcquireRequest) reentrant.AcquireReply {
			r := f.doAcquire(req)
			if r.Answer == busy {
				return reentrant.AcquireReply{Answer: held, Fence: 1}
			}
			return r
		}
	}},
	{"takes a client for an owner", []string{"excludes", "knows owners apart", "forgets an owner that released"}, func(f *faulty) {
		client := func(owner string) string { return owner[:strings.IndexByte(owner, '.')+1] }
		f.acquire = func(req reentrant.AcquireRequest) reentrant.AcquireReply {
			req.Owner = client(req.Owner)
			return f.doAcquire(req)
		}
		f.renew = func(req reentrant.RenewRequest) reentrant.HoldReply {
			req.Owner = client(req.Owner)
			return f.doRenew(req)
		}
		f.release = func(req reentrant.ReleaseRequest) reentrant.HoldReply {
			req.Owner = client(req.Owner)
			return f.doRelease(req)
		}
	}},
	{"remembers an owner that released", []string{"forgets an owner that released"}, func(f *faulty) {
		f.renew = func(req reentrant.RenewRequest) reentrant.HoldReply {
			r := f.doRenew(req)
			if f.fences[key(req.Name, req.Owner)] != 0 && r.Answer == gone {
				r.Answer = held
			}
			return r
		}
	}},
	{"frees with the first leave", []string{"counts depth", "repeats leave", "hands over with the last hold"}, func(f *faulty) {
		f.release = func(req reentrant.ReleaseRequest) reentrant.HoldReply {
			req.Leave = 0
			return f.doRelease(req)
		}
	}},
	{"takes back one hold at a time", []string{"frees at any depth"}, func(f *faulty) {
		depths := map[string]int{}
		f.acquire = func(req reentrant.AcquireRequest) reentrant.AcquireReply {
			r := f.doAcquire(req)
			if r.Answer == held {
				depths[key(req.Name, req.Owner)] = req.Depth
			}
			return r
		}
		f.release = func(req reentrant.ReleaseRequest) reentrant.HoldReply {
			k := key(req.Name, req.Owner)
			depths[k] = max(0, depths[k]-1)
			req.Leave = depths[k]
			return f.doRelease(req)
		}
	}},
	{"enters anew", []string{"never enters anew", "late acquire is harmless", "answers in order"}, func(f *faulty) {
		f.acquire = func(req reentrant.AcquireRequest) reentrant.AcquireReply {
			r := f.doAcquire(req)
			if r.Answer == gone {
				req.Depth = 1
				return f.doAcquire(req)
			}
			return r
		}
	}},
	{"tells twice what is left", []string{"tells what is left"}, scaleLeft(2)},
	{"tells half of what is left", []string{"tells what is left"}, scaleLeft(0.5)},
	{"trims names", []string{"takes any name"}, renamed(strings.TrimSpace)},
	{"cuts long names", []string{"takes any name"}, renamed(func(name string) string { return name[:min(len(name), reentrant.MaxNameBytes-1)] })},
	{"ends names with a zero byte", []string{"takes any name"}, renamed(func(name string) string {
		before, _, _ := strings.Cut(name, "\x00")
		return before
	})},
	{"groups at random", []string{"groups by name"}, func(f *faulty) {
		n := 0
		f.group = func(string) string { n++; return fmt.Sprint(n) }
	}},
	{"lets callers share an answer", []string{"serves many at once"}, func(f *faulty) {
		type call struct {
			done  chan struct{}
			reply reentrant.AcquireReply
		}
		calls := map[string]*call{}
		f.acquire = func(req reentrant.AcquireRequest) reentrant.AcquireReply {
			if c := calls[req.Name]; c != nil {
				f.mu.Unlock()
				<-c.done
				f.mu.Lock()
				return c.reply
			}
			c := &call{done: make(chan struct{})}
			calls[req.Name] = c
			f.mu.Unlock()
			time.Sleep(time.Millisecond)
			f.mu.Lock()
			c.reply = f.doAcquire(req)
			delete(calls, req.Name)
			close(c.done)
			return c.reply
		}
	}},
	{"does not answer once ctx is over", []string{"answers though ctx is over"}, func(f *faulty) { f.mute = true }},
	{"has no error when it does not know", []string{"answers though ctx is over"}, func(f *faulty) { f.noError = true }},

	{"grants anew to the holder", []string{"repeats acquire", "repeats enter", "re-entry keeps the fence"}, func(f *faulty) {
		f.acquire = func(req reentrant.AcquireRequest) reentrant.AcquireReply {
			if f.doRelease(reentrant.ReleaseRequest{Name: req.Name, Owner: req.Owner, TTL: long}).Answer == held {
				first := req
				first.Depth = 1
				f.doAcquire(first)
			}
			return f.doAcquire(req)
		}
	}},
	{"counts every copy", []string{"repeats acquire", "repeats enter", "repeats leave"}, func(f *faulty) {
		counts := map[string]int{}
		f.acquire = func(req reentrant.AcquireRequest) reentrant.AcquireReply {
			r := f.doAcquire(req)
			if r.Answer == held {
				counts[key(req.Name, req.Owner)]++
			}
			return r
		}
		f.release = func(req reentrant.ReleaseRequest) reentrant.HoldReply {
			k := key(req.Name, req.Owner)
			counts[k] = max(0, counts[k]-1)
			req.Leave = counts[k]
			return f.doRelease(req)
		}
	}},
	{"makes a hold by a renewal", []string{"repeats renew", "renews the grant that is meant"}, func(f *faulty) {
		f.renew = func(req reentrant.RenewRequest) reentrant.HoldReply {
			r := f.doRenew(req)
			if r.Answer == gone {
				r.Answer = f.doAcquire(askFor(req.TTL, req.Name, req.Owner)).Answer
			}
			return r
		}
	}},
	{"fails to release what is free", []string{"repeats release"}, func(f *faulty) {
		f.release = func(req reentrant.ReleaseRequest) reentrant.HoldReply {
			r := f.doRelease(req)
			if r.Answer == gone {
				return reentrant.HoldReply{Err: fmt.Errorf("lock %q is not held", req.Name)}
			}
			return r
		}
	}},
	{"lets anybody release", []string{"late release is harmless", "knows owners apart", "forgets an owner that released"}, func(f *faulty) {
		f.release = func(req reentrant.ReleaseRequest) reentrant.HoldReply {
			if holder := f.holder[req.Name]; holder != "" {
				req.Owner = holder
			}
			return f.doRelease(req)
		}
	}},
	{"gives a lock back to a late acquire", []string{"late acquire is harmless"}, func(f *faulty) {
		f.acquire = func(req reentrant.AcquireRequest) reentrant.AcquireReply {
			if r := f.doAcquire(req); r.Answer != busy || f.fences[key(req.Name, req.Owner)] == 0 {
				return r
			}
			f.doRelease(reentrant.ReleaseRequest{Name: req.Name, Owner: f.holder[req.Name], TTL: long})
			return f.doAcquire(req)
		}
	}},

	{"keeps leases for ever", []string{"ends a hold after its TTL", "renews the grant that is meant", "fence grows"}, scaleTTL(1000)},
	{"ends leases early", []string{"ends a hold after its TTL"}, scaleTTL(0.5)},
	{"has no full TTL for a repeated acquire", []string{"gives a full TTL each time"}, func(f *faulty) {
		f.acquire = func(req reentrant.AcquireRequest) reentrant.AcquireReply {
			if end, ok := f.ends[req.Name]; ok && req.Depth == 1 && f.holder[req.Name] == req.Owner {
				req.TTL = until(end)
			}
			return f.doAcquire(req)
		}
	}},
	{"has no full TTL for an enter", []string{"gives a full TTL each time"}, func(f *faulty) {
		f.acquire = func(req reentrant.AcquireRequest) reentrant.AcquireReply {
			if end, ok := f.ends[req.Name]; ok && req.Depth > 1 {
				req.TTL = until(end)
			}
			return f.doAcquire(req)
		}
	}},
	{"has no full TTL for a leave", []string{"gives a full TTL each time"}, func(f *faulty) {
		f.release = func(req reentrant.ReleaseRequest) reentrant.HoldReply {
			if end, ok := f.ends[req.Name]; ok {
				req.TTL = until(end)
			}
			return f.doRelease(req)
		}
	}},
	{"has no full TTL for a renewal", []string{"gives a full TTL each time", "lasts longer once it is taken"}, func(f *faulty) {
		f.renew = func(req reentrant.RenewRequest) reentrant.HoldReply {
			if end, ok := f.ends[req.Name]; ok {
				req.TTL = until(end)
			}
			return f.doRenew(req)
		}
	}},
	{"renews for anybody", []string{"renews the grant that is meant", "knows owners apart"}, func(f *faulty) {
		f.renew = func(req reentrant.RenewRequest) reentrant.HoldReply {
			if holder := f.holder[req.Name]; holder != "" {
				req.Owner, req.Fence = holder, f.fences[key(req.Name, holder)]
			}
			return f.doRenew(req)
		}
	}},
	{"does not compare fences", []string{"renews the grant that is meant", "late acquire is harmless", "serves one lock twice"}, func(f *faulty) {
		f.renew = func(req reentrant.RenewRequest) reentrant.HoldReply {
			req.Fence = f.fences[key(req.Name, req.Owner)]
			return f.doRenew(req)
		}
	}},
	{"prolongs a lease by a renewal that it refuses", []string{"renews the grant that is meant"}, func(f *faulty) {
		f.renew = func(req reentrant.RenewRequest) reentrant.HoldReply {
			r := f.doRenew(req)
			if holder := f.holder[req.Name]; r.Answer == busy {
				f.doRenew(reentrant.RenewRequest{Name: req.Name, Owner: holder, Fence: f.fences[key(req.Name, holder)], TTL: req.TTL})
			}
			return r
		}
	}},

	{"has one fence for all grants", []string{"fence grows", "fence grows over a hand-over", "serves many at once", "late acquire is harmless"}, func(f *faulty) {
		f.numbered(func(string, reentrant.AcquireRequest, int64) int64 { return 42 })
	}},
	{"counts fences by the lock, which forgets", []string{"fence grows"}, func(f *faulty) {
		n := map[string]int64{}
		f.numbered(func(name string, _ reentrant.AcquireRequest, _ int64) int64 {
			if end, ok := f.ends[name]; ok && time.Now().After(end) {
				n[name] = 0
			}
			n[name]++
			return n[name]
		})
	}},
	{"hands over without a new fence", []string{"fence grows over a hand-over"}, func(f *faulty) {
		last := map[string]int64{}
		f.numbered(func(name string, req reentrant.AcquireRequest, real int64) int64 {
			if !f.waited[key(name, req.Owner)] {
				last[name] = real
			}
			return last[name]
		})
	}},
	{"has a fence for each enter", []string{"re-entry keeps the fence", "repeats enter", "serves one lock twice"}, func(f *faulty) {
		f.acquire = func(req reentrant.AcquireRequest) reentrant.AcquireReply {
			r := f.doAcquire(req)
			if r.Answer == held {
				r.Fence += int64(req.Depth)
			}
			return r
		}
		f.renew = func(req reentrant.RenewRequest) reentrant.HoldReply {
			req.Fence--
			return f.doRenew(req)
		}
	}},
	{"does not hear hints", []string{"fence passes the hint", "a busy lock keeps the hint", "a hand-over keeps the hint"}, func(f *faulty) {
		f.acquire = func(req reentrant.AcquireRequest) reentrant.AcquireReply {
			req.FenceAtLeast = 0
			return f.doAcquire(req)
		}
	}},
	{"forgets the hint of a busy one", []string{"a busy lock keeps the hint", "a hand-over keeps the hint"}, func(f *faulty) {
		f.acquire = func(req reentrant.AcquireRequest) reentrant.AcquireReply {
			if f.holder[req.Name] != "" {
				req.FenceAtLeast = 0
			}
			return f.doAcquire(req)
		}
	}},

	{"sends who asks again to the end", []string{"hands over in order"}, func(f *faulty) {
		f.acquire = func(req reentrant.AcquireRequest) reentrant.AcquireReply {
			if req.Seat > 0 && f.holder[req.Name] != req.Owner {
				f.doRelease(reentrant.ReleaseRequest{Name: req.Name, Owner: req.Owner, Leave: 1, TTL: long, GiveUp: true})
			}
			return f.doAcquire(req)
		}
	}},
	{"hands over at each leave", []string{"hands over with the last hold"}, func(f *faulty) {
		f.release = func(req reentrant.ReleaseRequest) reentrant.HoldReply {
			if len(f.queues[req.Name]) > 0 {
				req.Leave = 0
			}
			return f.doRelease(req)
		}
	}},
	{"frees in place of a hand-over", []string{"hands over before it is asked", "hands over in order"}, func(f *faulty) {
		f.release = func(req reentrant.ReleaseRequest) reentrant.HoldReply {
			if req.Leave == 0 {
				f.emptyQueue(req.Name)
			}
			return f.doRelease(req)
		}
	}},
	{"hands over for the full TTL", []string{"hands over for a short time"}, handsOverFor(long)},
	{"hands over for longer than was asked", []string{"hands over for a short time"}, handsOverFor(reentrant.HandoverTTL)},
	{"hands over and never gives more", []string{"lasts longer once it is taken"}, func(f *faulty) {
		f.acquire = func(req reentrant.AcquireRequest) reentrant.AcquireReply {
			r := f.doAcquire(req)
			if r.Answer == held && f.waited[key(req.Name, req.Owner)] {
				f.doRenew(reentrant.RenewRequest{Name: req.Name, Owner: req.Owner, Fence: r.Fence, TTL: short})
			}
			return r
		}
	}},
	{"has no queue", []string{"nobody jumps the queue", "hands over in order", "hands over before it is asked"}, func(f *faulty) {
		f.acquire = func(req reentrant.AcquireRequest) reentrant.AcquireReply {
			req.Seat = 0
			return f.doAcquire(req)
		}
	}},
	{"lets somebody jump the queue", []string{"nobody jumps the queue"}, func(f *faulty) {
		f.acquire = func(req reentrant.AcquireRequest) reentrant.AcquireReply {
			if r := f.doAcquire(req); r.Answer != busy || r.Left > 0 {
				return r
			}
			f.emptyQueue(req.Name)
			return f.doAcquire(req)
		}
	}},
	{"keeps seats for ever", []string{"passes over dead seats"}, func(f *faulty) {
		f.acquire = func(req reentrant.AcquireRequest) reentrant.AcquireReply {
			if req.Seat > 0 {
				req.Seat = long
			}
			return f.doAcquire(req)
		}
	}},
	{"keeps seats no longer for asking again", []string{"passes over dead seats"}, func(f *faulty) {
		ends := map[string]time.Time{}
		f.acquire = func(req reentrant.AcquireRequest) reentrant.AcquireReply {
			if k := key(req.Name, req.Owner); req.Seat > 0 {
				if end, ok := ends[k]; ok {
					req.Seat = until(end)
				} else {
					ends[k] = time.Now().Add(req.Seat)
				}
			}
			return f.doAcquire(req)
		}
	}},
	{"lets everybody wait", []string{"takes no seat unasked"}, func(f *faulty) {
		f.acquire = func(req reentrant.AcquireRequest) reentrant.AcquireReply {
			req.Seat = max(req.Seat, long)
			return f.doAcquire(req)
		}
	}},
	{"does not let go of a seat", []string{"gives up a seat"}, func(f *faulty) {
		f.release = func(req reentrant.ReleaseRequest) reentrant.HoldReply {
			req.GiveUp = false
			return f.doRelease(req)
		}
	}},
	{"gives up the seat alone", []string{"gives up what it was handed"}, func(f *faulty) {
		f.release = func(req reentrant.ReleaseRequest) reentrant.HoldReply {
			if req.GiveUp {
				req.Leave = 1
			}
			return f.doRelease(req)
		}
	}},

	{"brings no news", []string{"brings news", "waits for the last news"}, func(f *faulty) {
		f.listen = func(_ string, _ func(reentrant.Handover), do func(string, func(reentrant.Handover)) (func(), error)) (func(), error) {
			return do("nobody", func(reentrant.Handover) {})
		}
	}},
	{"brings news of the wrong owner", []string{"brings news"}, func(f *faulty) {
		f.listen = func(client string, woken func(reentrant.Handover), do func(string, func(reentrant.Handover)) (func(), error)) (func(), error) {
			return do(client, func(h reentrant.Handover) { woken(reentrant.Handover{Name: h.Name, Owner: client}) })
		}
	}},
	{"brings news of another grant", []string{"brings news"}, func(f *faulty) {
		f.listen = func(client string, woken func(reentrant.Handover), do func(string, func(reentrant.Handover)) (func(), error)) (func(), error) {
			return do(client, func(h reentrant.Handover) { h.Fence--; woken(h) })
		}
	}},
	{"names a fence that was passed", []string{"tells old news from new"}, func(f *faulty) {
		f.acquire = func(req reentrant.AcquireRequest) reentrant.AcquireReply {
			r := f.doAcquire(req)
			if r.Answer == busy {
				r.Fence = 1
			}
			return r
		}
	}},
	{"names a fence too high", []string{"tells old news from new"}, func(f *faulty) {
		f.acquire = func(req reentrant.AcquireRequest) reentrant.AcquireReply {
			r := f.doAcquire(req)
			if r.Answer == busy {
				r.Fence += ahead
			}
			return r
		}
	}},
	{"brings news to everybody", []string{"brings news to whom it concerns"}, func(f *faulty) {
		var all []func(reentrant.Handover)
		f.listen = func(client string, woken func(reentrant.Handover), do func(string, func(reentrant.Handover)) (func(), error)) (func(), error) {
			all = append(all, woken)
			return do(client, func(h reentrant.Handover) {
				f.mu.Lock()
				listeners := all[:len(all):len(all)]
				f.mu.Unlock()
				for _, tell := range listeners {
					tell(h)
				}
			})
		}
	}},
	{"goes on after stop", []string{"stops bringing news", "waits for the last news"}, func(f *faulty) {
		f.listen = func(client string, woken func(reentrant.Handover), do func(string, func(reentrant.Handover)) (func(), error)) (func(), error) {
			stop, err := do(client, woken)
			f.t.Cleanup(stop)
			return func() {}, err
		}
	}},
	{"does not wait for the last news", []string{"waits for the last news"}, func(f *faulty) {
		f.listen = func(client string, woken func(reentrant.Handover), do func(string, func(reentrant.Handover)) (func(), error)) (func(), error) {
			return do(client, func(h reentrant.Handover) { go woken(h) })
		}
	}},

	{"answers the other way round", []string{"answers in order"}, func(f *faulty) { f.reverse = true }},
	{"serves a lock once", []string{"serves one lock twice"}, func(f *faulty) { f.once = true }},
	{"has one TTL for a call", []string{"keeps requests apart"}, func(f *faulty) { f.firstTTL = true }},
	{"has one seat for a call", []string{"keeps requests apart"}, func(f *faulty) { f.firstSeat = true }},
	{"serves the first hundred", []string{"serves very many"}, func(f *faulty) { f.atMost = 100 }},
}

func TestChecksFindFaults(t *testing.T) {
	rdb := devtest.Redis(t)
	byName := map[string]*check{}
	unproven := map[string]bool{}
	for _, group := range checks {
		for i := range group {
			byName[group[i].name], unproven[group[i].name] = &group[i], true
		}
	}
	for _, b := range brokenStores {
		for _, name := range b.caught {
			c := byName[name]
			if c == nil {
				t.Errorf("%s: there is no check %q", b.name, name)
				continue
			}
			delete(unproven, name)
			t.Run(b.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				f := newFaulty(t, redisStore(t, rdb, reentrant.Config{}))
				b.fault(f)
				err := c.run(t.Context(), f)
				if err == nil {
					t.Fatalf("a store that %s was let pass\ncontract: %s", b.name, c.contract)
				}
				t.Log(err)
			})
		}
	}
	for name := range unproven {
		t.Errorf("no broken store shows that check %q finds anything", name)
	}
}
