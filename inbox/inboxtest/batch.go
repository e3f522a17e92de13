package inboxtest

import (
	"context"
	"slices"

	"github.com/jmoiron/sqlx"

	"github.com/onceward/onceward/inbox"
)

var batchChecks = []check{
	{
		"answers in order", "There is one result for each message, in the order of the messages, and the handler gets their index.",
		func(p *probe) {
			b := p.open(inbox.Config{})
			p.want(inbox.Applied, b, inbox.Message{ID: "old", Digest: []byte("1"), Fences: []inbox.Fence{{Resource: "x", Token: 5}}}, writes("old"))
			ms := []inbox.Message{
				{ID: "old", Digest: []byte("1")},
				{ID: "new"},
				{ID: ""},
				{ID: "late", Fences: []inbox.Fence{{Resource: "x", Token: 4}}},
				{ID: "bad"},
				{ID: "new two"},
				{ID: "not wanted"},
				{ID: "several", Fences: []inbox.Fence{{Resource: "y", Token: 1}, {Resource: "z", Token: 1}}},
				{ID: "new three", Fences: []inbox.Fence{{Resource: "w", Token: 1}}},
			}
			fn := effectsOf(ms, map[int]handler{
				4: func(context.Context, *sqlx.Tx, int) error { return errBoom },
				6: func(context.Context, *sqlx.Tx, int) error { return skip{} },
			})
			rs := p.batch(p.ctx, b, ms, fn)
			p.all(ms, rs, inbox.Duplicate, inbox.Applied, inbox.Failed, inbox.Stale, inbox.Failed, inbox.Applied, inbox.Skipped, inbox.Applied, inbox.Applied)
			p.committed("old", "new", "new two", "not wanted", "several", "new three")
		},
	},
	{
		"keeps a failing one apart", "A message that fails, in whatever way, takes nothing with it: its neighbours are applied, each once.",
		func(p *probe) {
			b := p.open(inbox.Config{})
			var want []string
			for name, bad := range map[string]handler{
				"e": func(context.Context, *sqlx.Tx, int) error { return errBoom }, "s": breaks, "h": hides,
				"p": func(context.Context, *sqlx.Tx, int) error { panic("boom") },
			} {
				for _, at := range [][]int{{0}, {7}, {8}, {19}, {3, 4, 18}} {
					ms := messages(20)
					bads := map[int]handler{}
					for i := range ms {
						ms[i].ID = name + string(rune('a'+at[0])) + ms[i].ID
						if slices.Contains(at, i) {
							bads[i] = bad
						}
					}
					rs := p.batch(p.ctx, b, ms, effectsOf(ms, bads))
					for i, r := range rs {
						outcome := inbox.Applied
						if bads[i] != nil {
							outcome = inbox.Failed
						}
						p.is(outcome, ms[i], r)
					}
					want = append(want, idsOf(ms, at...)...)
				}
			}
			p.committed(want...)
		},
	},
	{
		"applies the first of twins", "Of messages with one ID in a batch the first is applied, and the others are for again, since what they are depends on its COMMIT. So is a second token of a resource.",
		func(p *probe) {
			b := p.open(inbox.Config{})
			ms := []inbox.Message{{ID: "a"}, {ID: "a"}, {ID: "b", Fences: fences("x", 1, 1)}, {ID: "c", Fences: fences("x", 1, 2)}, {ID: "d", Fences: fences("x", 1, 1)}}
			rs := p.batch(p.ctx, b, ms, effectsOf(ms, nil))
			p.all(ms, rs, inbox.Applied, inbox.Again, inbox.Applied, inbox.Again, inbox.Applied)
			p.refused(inbox.Duplicate, b, ms[1])
			p.want(inbox.Applied, b, ms[3], writes("c"))
			p.committed("a", "b", "c", "d")
		},
	},
	{
		"takes any number", "A batch has any number of messages, none included.",
		func(p *probe) {
			b := p.open(inbox.Config{})
			ms := messages(2*inbox.MaxBatch + 3)
			for _, n := range []int{0, 1, inbox.MaxBatch, len(ms)} { // each holds the ones before
				fn := effectsOf(ms, nil)
				p.batch(p.ctx, b, ms[:n], fn)
				p.committed(idsOf(ms[:n])...)
				for i, r := range p.batch(p.ctx, b, ms[:n], fn) {
					p.is(inbox.Duplicate, ms[i], r)
				}
			}
		},
	},
	{
		"shares a transaction", "Up to MaxBatch messages with one fence or none share one transaction, and one COMMIT.",
		func(p *probe) {
			ms := messages(inbox.MaxBatch)
			p.all(ms, p.batch(p.ctx, p.open(inbox.Config{}), ms, effectsOf(ms, nil)), inbox.Applied)
			var n int
			if err := p.db.GetContext(p.ctx, &n, "SELECT count(DISTINCT tx) FROM inboxtest_effect"); err != nil || n != 1 {
				p.failf("%d transactions (%v), want 1", n, err)
			}
		},
	},
	{
		"goes with ctx", "If ctx ends in the middle of a batch, nothing of its transaction is committed, and all its messages are for again.",
		func(p *probe) {
			b, ms := p.open(inbox.Config{}), messages(10)
			ctx, cancel := context.WithCancel(p.ctx)
			rs := p.batch(ctx, b, ms, effectsOf(ms, map[int]handler{6: func(context.Context, *sqlx.Tx, int) error {
				cancel()
				return nil
			}}))
			p.all(ms, rs, inbox.Again)
			p.committed()
			p.all(ms, p.batch(p.ctx, b, ms, effectsOf(ms, nil)), inbox.Applied)
			p.committed(idsOf(ms)...)
		},
	},
}
