package inboxtest

import (
	"github.com/onceward/onceward/inbox"
)

// with returns a message with fences.
func with(id string, fences ...inbox.Fence) inbox.Message {
	return inbox.Message{ID: id, Fences: fences}
}

var fenceChecks = []check{
	{
		"refuses a stale fence", "Once a greater token of a resource has been seen, a smaller one is stale. An equal one is the same grant.",
		func(p *probe) {
			b := p.open(inbox.Config{})
			p.want(inbox.Applied, b, with("a", inbox.Fence{Resource: "x", Token: 5}), writes("a"))
			err := p.refused(inbox.Stale, b, with("b", inbox.Fence{Resource: "x", Token: 4}))
			if e := target[*inbox.StaleError](p, err); e.Resource != "x" || e.Token != 4 || e.Stored != 5 {
				p.failf("error is %+v, want resource x, token 4, stored 5", e)
			}
			p.want(inbox.Applied, b, with("c", inbox.Fence{Resource: "x", Token: 5}), writes("c"))
			p.want(inbox.Applied, b, with("d", inbox.Fence{Resource: "x", Token: 7}), writes("d"))
			p.refused(inbox.Stale, b, with("e", inbox.Fence{Resource: "x", Token: 5}))
			p.want(inbox.Applied, b, with("b", inbox.Fence{Resource: "x", Token: 8}), writes("b")) // a new grant
			p.committed("a", "b", "c", "d")
		},
	},
	{
		"has a fence per resource", "Tokens are compared within a resource, which all tenants and consumers share.",
		func(p *probe) {
			p.want(inbox.Applied, p.open(inbox.Config{}), with("a", inbox.Fence{Resource: "x", Token: 5}), writes("a"))
			other := p.open(inbox.Config{Tenant: "other", Consumer: "other"})
			p.want(inbox.Applied, other, with("b", inbox.Fence{Resource: "X", Token: 1}), writes("b"))
			p.refused(inbox.Stale, other, with("c", inbox.Fence{Resource: "x", Token: 4}))
			p.committed("a", "b")
		},
	},
	{
		"moves no fence by a failure", "A token counts once its transaction is committed.",
		func(p *probe) {
			b := p.open(inbox.Config{})
			p.want(inbox.Failed, b, with("a", inbox.Fence{Resource: "x", Token: 9}), breaks)
			p.want(inbox.Applied, b, with("b", inbox.Fence{Resource: "x", Token: 5}), writes("b"))
			p.committed("b")
		},
	},
	{
		"decides duplicates first", "A message that was decided is a duplicate, though its fence is stale: no later grant would change that.",
		func(p *probe) {
			b := p.open(inbox.Config{})
			p.want(inbox.Applied, b, with("a", inbox.Fence{Resource: "x", Token: 5}), writes("a"))
			p.want(inbox.Applied, b, with("b", inbox.Fence{Resource: "x", Token: 6}), writes("b"))
			p.refused(inbox.Duplicate, b, with("a", inbox.Fence{Resource: "x", Token: 5}))
		},
	},
	{
		"asks for all of several fences", "A message with several fences runs if all of them pass. If one does not, the others stay where they were.",
		func(p *probe) {
			b := p.open(inbox.Config{})
			p.want(inbox.Applied, b, with("a", inbox.Fence{Resource: "x", Token: 5}), writes("a"))
			p.refused(inbox.Stale, b, with("b", inbox.Fence{Resource: "y", Token: 9}, inbox.Fence{Resource: "x", Token: 4}))
			p.refused(inbox.Stale, b, with("b", inbox.Fence{Resource: "x", Token: 4}, inbox.Fence{Resource: "y", Token: 9}))
			p.want(inbox.Applied, b, with("c", inbox.Fence{Resource: "y", Token: 1}), writes("c"))
			p.want(inbox.Applied, b, with("b", inbox.Fence{Resource: "x", Token: 6}, inbox.Fence{Resource: "y", Token: 2}), writes("b"))
			p.refused(inbox.Stale, b, with("d", inbox.Fence{Resource: "y", Token: 1}))
			p.refused(inbox.Stale, b, with("d", inbox.Fence{Resource: "x", Token: 5}))
			p.committed("a", "b", "c")
		},
	},
	{
		"holds the fence until COMMIT", "A claim waits while another transaction of the resource is open, and its handler runs after that one's COMMIT.",
		func(p *probe) {
			b := p.open(inbox.Config{})
			h := p.hold(b, with("a", inbox.Fence{Resource: "x", Token: 1}))
			next := with("b", inbox.Fence{Resource: "x", Token: 2})
			done := h.behind(func() inbox.Result { return b.ApplyBatch(p.ctx, []inbox.Message{next}, writes("next"))[0] })
			h.commits()
			p.is(inbox.Applied, next, <-done)
			p.inOrder("holder", "next")
		},
	},
	{
		"lets nobody follow a newer one", "Who waits with the smaller token is stale once the greater one is committed, and may run if it is not.",
		func(p *probe) {
			b := p.open(inbox.Config{})
			for resource, commit := range map[string]bool{"x": true, "y": false} {
				h := p.hold(b, with("newer "+resource, inbox.Fence{Resource: resource, Token: 2}))
				old := with("older "+resource, inbox.Fence{Resource: resource, Token: 1})
				done := h.behind(func() inbox.Result { return b.ApplyBatch(p.ctx, []inbox.Message{old}, writes(old.ID))[0] })
				if commit {
					h.commits()
					p.is(inbox.Stale, old, <-done)
				} else {
					h.fails()
					p.is(inbox.Applied, old, <-done)
				}
			}
			p.committed("holder", "older y")
		},
	},
}
