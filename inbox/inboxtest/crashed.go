package inboxtest

import (
	"context"
	"errors"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/onceward/onceward/inbox"
)

var crashChecks = []check{
	{"dies after the claim", "A claim whose process died claims nothing.", diesAt(AfterClaim)},
	{"dies after the handler", "Effects whose process died before COMMIT are gone, and their messages can be applied.", diesAt(AfterHandler)},
	{"dies before COMMIT", "The same, when nothing is left to do but COMMIT.", diesAt(BeforeCommit)},
	{"dies after COMMIT", "Effects that were committed stay, though nobody was told: their messages are duplicates.", diesAt(AfterCommit)},
	{
		"frees what a frozen one holds", "A holder that does nothing for MaxHold in its transaction holds nobody off any longer, and cannot commit when it wakes up.",
		func(p *probe) {
			frozen, b := p.open(inbox.Config{MaxHold: time.Second, LockTimeout: time.Second}), p.open(inbox.Config{LockTimeout: 8 * time.Second})
			m := with("a", inbox.Fence{Resource: "x", Token: 1})
			newer := with("b", inbox.Fence{Resource: "x", Token: 2})
			h := p.hold(frozen, m)
			p.want(inbox.Applied, b, newer, writes("newer"))
			r := h.end(nil)
			p.is(inbox.Failed, m, r)
			if !errors.Is(r.Err, inbox.ErrIdle) {
				p.failf("error is %v, want ErrIdle", r.Err)
			}
			p.refused(inbox.Stale, frozen, m)
			p.committed("newer")
		},
	},
}

// diesAt lets one message and a batch die at a point, and applies them again.
func diesAt(point Point) func(p *probe) {
	return func(p *probe) {
		all := messages(6)
		for _, ms := range [][]inbox.Message{all[:1], all[1:]} {
			calls := 0
			fn := func(ctx context.Context, tx *sqlx.Tx, i int) error {
				calls++
				return effectsOf(ms, nil)(ctx, tx, i)
			}
			b := p.open(inbox.Config{})
			rs := p.batch(CrashAt(p.ctx, point), b, ms, fn)
			for i, r := range rs {
				p.is(inbox.Again, ms[i], r)
				if !errors.Is(r.Err, ErrCrashed) {
					p.failf("message %q: %v, want that it crashed %v", ms[i].ID, r.Err, point)
				}
			}
			if ran := calls > 0; ran != (point != AfterClaim) {
				p.failf("%d calls of the handler before it crashed %v", calls, point)
			}
			then := inbox.Applied
			if point == AfterCommit {
				then = inbox.Duplicate
			}
			p.all(ms, p.batch(p.ctx, p.open(inbox.Config{}), ms, fn), then)
		}
		p.committed(idsOf(all)...)
	}
}
