package inboxtest

import (
	"slices"
	"sync"
	"time"

	"github.com/onceward/onceward/inbox"
)

var raceChecks = []check{
	{
		"waits for a rival", "Who claims an ID that another transaction has claimed waits for its end: a duplicate, or a conflict, if it commits, and free to run if it does not.",
		func(p *probe) {
			b, other := p.open(inbox.Config{}), p.open(inbox.Config{})
			for _, tt := range []struct {
				id, digest string
				commit     bool
				want       inbox.Outcome
			}{{"a", "1", true, inbox.Duplicate}, {"b", "2", true, inbox.Conflict}, {"c", "1", false, inbox.Applied}} {
				h := p.hold(other, inbox.Message{ID: tt.id, Digest: []byte("1")})
				m := inbox.Message{ID: tt.id, Digest: []byte(tt.digest)}
				done := h.behind(func() inbox.Result { return b.ApplyBatch(p.ctx, []inbox.Message{m}, writes(m.ID))[0] })
				if tt.commit {
					h.commits()
				} else {
					h.fails()
				}
				p.is(tt.want, m, <-done)
			}
			p.committed("holder", "holder", "c")
		},
	},
	{
		"is busy after a while", "Who has waited for LockTimeout is busy, which says nothing about the message: it can be applied later.",
		func(p *probe) {
			const timeout = 100 * time.Millisecond
			b := p.open(inbox.Config{LockTimeout: timeout})
			for _, m := range []inbox.Message{with("a"), with("b", inbox.Fence{Resource: "x", Token: 1})} {
				h := p.hold(b, m)
				start := time.Now()
				err := p.refused(inbox.Busy, b, m)
				if waited := time.Since(start); waited < timeout {
					p.failf("busy after %v, before LockTimeout (%v)", waited, timeout)
				}
				if e := target[*inbox.BusyError](p, err); e.RetryIn() <= 0 {
					p.failf("RetryIn = %v, must be above 0", e.RetryIn())
				}
				h.fails()
				p.want(inbox.Applied, b, m, writes(m.ID))
			}
			p.committed("a", "b")
		},
	},
	{
		"spares the neighbours of a busy one", "If somebody holds a resource that is known, only its message is busy, and its batch goes on without it.",
		func(p *probe) {
			b := p.open(inbox.Config{LockTimeout: 100 * time.Millisecond})
			ms := messages(5)
			p.want(inbox.Applied, b, with("before", ms[2].Fences...), writes("before"))
			h := p.hold(b, with("other", ms[2].Fences...))
			p.all(ms, p.batch(p.ctx, b, ms, effectsOf(ms, nil)), inbox.Applied, inbox.Applied, inbox.Busy, inbox.Applied, inbox.Applied)
			h.commits()
			p.committed(append(idsOf(ms, 2), "before", "holder")...)
		},
	},
	{
		"applies for one of many at once", "Of deliveries of one ID at the same time one is applied, and the others are duplicates.",
		func(p *probe) {
			const n = 6
			m := inbox.Message{ID: "a"}
			var rs [n]inbox.Result
			var wg sync.WaitGroup
			for i := range rs {
				b := p.open(inbox.Config{})
				wg.Go(func() { rs[i] = b.ApplyBatch(p.ctx, []inbox.Message{m}, writes("a"))[0] })
			}
			wg.Wait()
			applied := 0
			for _, r := range rs {
				if r.Outcome == inbox.Applied {
					applied++
				} else {
					p.is(inbox.Duplicate, m, r)
				}
			}
			if applied != 1 {
				p.failf("%d deliveries were applied, want 1", applied)
			}
			p.committed("a")
		},
	},
	{
		"does not deadlock", "Batches of the same messages in other orders wait for each other, and none is given up for a deadlock.",
		func(p *probe) {
			b := p.open(inbox.Config{})
			var want []string
			for round := range 10 {
				ms := messages(20)
				for i := range ms {
					ms[i].ID = string(rune('a'+round)) + ms[i].ID
				}
				back := slices.Clone(ms)
				slices.Reverse(back)
				var rs, sr []inbox.Result
				var wg sync.WaitGroup
				wg.Go(func() { rs = b.ApplyBatch(p.ctx, ms, effectsOf(ms, nil)) })
				wg.Go(func() { sr = b.ApplyBatch(p.ctx, back, effectsOf(back, nil)) })
				wg.Wait()
				slices.Reverse(sr)
				for i, m := range ms {
					if rs[i].Outcome == inbox.Applied {
						rs[i], sr[i] = sr[i], rs[i]
					}
					p.is(inbox.Applied, m, sr[i])
					p.is(inbox.Duplicate, m, rs[i])
				}
				want = append(want, idsOf(ms)...)
			}
			p.committed(want...)
		},
	},
}
