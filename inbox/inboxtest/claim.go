package inboxtest

import (
	"context"
	"errors"
	"strings"

	"github.com/jmoiron/sqlx"

	"github.com/onceward/onceward/inbox"
)

var claimChecks = []check{
	{
		"applies once", "The first delivery of an ID is applied and its effect committed. Each further one is a duplicate, and its handler is not called.",
		func(p *probe) {
			b, m := p.open(inbox.Config{}), inbox.Message{ID: "a"}
			p.want(inbox.Applied, b, m, writes("a"))
			for range 3 {
				p.refused(inbox.Duplicate, b, m)
			}
			p.committed("a")
		},
	},
	{
		"remembers", "What is decided is in the database: a new process knows it.",
		func(p *probe) {
			m := inbox.Message{ID: "a"}
			p.want(inbox.Applied, p.open(inbox.Config{}), m, writes("a"))
			p.refused(inbox.Duplicate, p.open(inbox.Config{}), m)
			p.committed("a")
		},
	},
	{
		"knows scopes apart", "A message is handled once for each tenant and consumer.",
		func(p *probe) {
			for range 2 {
				for _, s := range [][2]string{{"", "x"}, {"", "y"}, {"x", "y"}, {"y", "x"}, {"ab", "c"}, {"a", "bc"}} {
					b := p.open(inbox.Config{Tenant: s[0], Consumer: s[1]})
					p.apply(b, inbox.Message{ID: "a"}, writes(s[0]+"/"+s[1]))
				}
			}
			p.committed("/x", "/y", "x/y", "y/x", "ab/c", "a/bc")
		},
	},
	{
		"knows IDs apart", "An ID is the whole of its bytes, whatever they are.",
		func(p *probe) {
			b := p.open(inbox.Config{})
			long := strings.Repeat("x", inbox.MaxIDBytes-1)
			ids := []string{
				"a", "A", " a", "a ", "a\t", "ä", "a\u0308", "a\xff", "a\xfe", "1", "01", "1.0", "null", "NULL", "{}", `"`, `\`, `\\`, "'", "a,b", "a%", "a_", "$1",
				long + "x", long + "y", long,
			}
			ms := make([]inbox.Message, len(ids))
			for i, id := range ids {
				ms[i].ID = id
			}
			for i, r := range p.batch(p.ctx, b, ms, writes("x")) {
				p.is(inbox.Applied, ms[i], r)
			}
			for _, m := range ms {
				p.refused(inbox.Duplicate, b, m)
			}
		},
	},
	{
		"refuses what has no identity", "A message without a usable ID or fence is refused for good, and its handler is not called. No ID is made up.",
		func(p *probe) {
			b := p.open(inbox.Config{})
			for _, m := range []inbox.Message{
				{},
				{ID: " \t"},
				{ID: "a\x00b"},
				{ID: strings.Repeat("x", inbox.MaxIDBytes+1)},
				{ID: "a", Fences: []inbox.Fence{{Resource: "", Token: 1}}},
				{ID: "a", Fences: []inbox.Fence{{Resource: "x"}}},
				{ID: "a", Fences: []inbox.Fence{{Resource: "x", Token: 1}, {Resource: "x", Token: 2}}},
			} {
				target[*inbox.IdentityError](p, p.refused(inbox.Failed, b, m))
			}
		},
	},
	{
		"undoes a failure", "If the handler returns an error, the message is failed with that error, nothing it wrote stays, and the message can be applied again.",
		func(p *probe) {
			b, m := p.open(inbox.Config{}), inbox.Message{ID: "a"}
			for range 2 {
				err := p.want(inbox.Failed, b, m, func(ctx context.Context, tx *sqlx.Tx, _ int) error {
					return errors.Join(write(ctx, tx, "failed"), errBoom)
				})
				if !errors.Is(err, errBoom) {
					p.failf("error is %v, want the handler's in it", err)
				}
				p.committed()
			}
			p.want(inbox.Failed, b, m, breaks)
			p.want(inbox.Applied, b, m, writes("a"))
			p.committed("a")
		},
	},
	{
		"undoes a panic", "A panic of the handler is the failure of its message.",
		func(p *probe) {
			b, m := p.open(inbox.Config{}), inbox.Message{ID: "a"}
			err := p.want(inbox.Failed, b, m, func(ctx context.Context, tx *sqlx.Tx, _ int) error {
				if err := write(ctx, tx, "failed"); err != nil {
					return err
				}
				panic("boom")
			})
			if e := target[*inbox.PanicError](p, err); e.Value != "boom" {
				p.failf("value of the panic is %v, want boom", e.Value)
			}
			p.committed()
			p.want(inbox.Applied, b, m, writes("a"))
			p.committed("a")
		},
	},
	{
		"finds a hidden error", "A handler that hides the error of a statement has failed, though it returns nil.",
		func(p *probe) {
			b, m := p.open(inbox.Config{}), inbox.Message{ID: "a"}
			if err := p.want(inbox.Failed, b, m, hides); !errors.Is(err, inbox.ErrSwallowed) {
				p.failf("error is %v, want ErrSwallowed", err)
			}
			p.want(inbox.Applied, b, m, writes("a"))
			p.committed("a")
		},
	},
	{
		"finds who ends the transaction", "A handler that rolls the transaction back has failed.",
		func(p *probe) {
			b, m := p.open(inbox.Config{}), inbox.Message{ID: "a"}
			err := p.want(inbox.Failed, b, m, func(ctx context.Context, tx *sqlx.Tx, _ int) error {
				return errors.Join(write(ctx, tx, "lost"), tx.Rollback())
			})
			if !errors.Is(err, inbox.ErrEnded) {
				p.failf("error is %v, want ErrEnded", err)
			}
			p.committed()
			p.want(inbox.Applied, b, m, writes("a"))
			p.committed("a")
		},
	},
	{
		"decides what is skipped", "A message that the handler chose to skip is decided, and what it wrote stays.",
		func(p *probe) {
			b, m := p.open(inbox.Config{}), inbox.Message{ID: "a"}
			p.want(inbox.Skipped, b, m, func(ctx context.Context, tx *sqlx.Tx, _ int) error {
				return errors.Join(write(ctx, tx, "note"), skip{})
			})
			p.refused(inbox.Duplicate, b, m)
			p.committed("note")
		},
	},
	{
		"tells a conflict", "An ID that was decided with another digest is a conflict for good, and its handler is not called.",
		func(p *probe) {
			b := p.open(inbox.Config{})
			p.want(inbox.Applied, b, inbox.Message{ID: "a", Digest: []byte("1")}, writes("a"))
			err := p.refused(inbox.Conflict, b, inbox.Message{ID: "a", Digest: []byte("2")})
			if e := target[*inbox.ConflictError](p, err); e.ID != "a" || !e.Permanent() || e.Given == e.Stored {
				p.failf("error is %+v, want ID a, permanent, two digests", e)
			}
			p.refused(inbox.Duplicate, b, inbox.Message{ID: "a", Digest: []byte("1")})
			p.committed("a")
		},
	},
	{
		"compares what there is", "Without a digest, of the first delivery or of this one, there is nothing to compare: it is a duplicate.",
		func(p *probe) {
			b := p.open(inbox.Config{})
			p.want(inbox.Applied, b, inbox.Message{ID: "a", Digest: []byte("1")}, writes("a"))
			p.refused(inbox.Duplicate, b, inbox.Message{ID: "a"})
			p.want(inbox.Applied, b, inbox.Message{ID: "b"}, writes("b"))
			p.refused(inbox.Duplicate, b, inbox.Message{ID: "b", Digest: []byte("1")})
			p.committed("a", "b")
		},
	},
	{
		"undoes when ctx ends", "If ctx ends while the handler runs, nothing is committed whatever the handler returns, and nobody is to blame: the message is for again.",
		func(p *probe) {
			b, m := p.open(inbox.Config{}), inbox.Message{ID: "a"}
			ctx, cancel := context.WithCancelCause(p.ctx)
			r := p.batch(ctx, b, []inbox.Message{m}, func(ctx context.Context, tx *sqlx.Tx, _ int) error {
				err := write(ctx, tx, "a")
				cancel(errBoom)
				return err
			})[0]
			p.is(inbox.Again, m, r)
			if !errors.Is(r.Err, errBoom) {
				p.failf("error is %v, want the cause of ctx in it", r.Err)
			}
			p.committed()
			p.want(inbox.Applied, b, m, writes("a"))
			p.committed("a")
		},
	},
	{
		"does not begin once ctx is over", "If ctx is over, the handler is not called, and the message is for again.",
		func(p *probe) {
			b, m := p.open(inbox.Config{}), inbox.Message{ID: "a"}
			ctx, cancel := context.WithCancel(p.ctx)
			cancel()
			var n never
			p.is(inbox.Again, m, p.batch(ctx, b, []inbox.Message{m}, n.handle)[0])
			if n.ran {
				p.failf("the handler was called")
			}
			p.want(inbox.Applied, b, m, writes("a"))
		},
	},
}
