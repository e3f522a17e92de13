package inboxtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/onceward/onceward/inbox"
)

var errBoom = errors.New("boom")

// handler handles the message at index i.
type handler = func(ctx context.Context, tx *sqlx.Tx, i int) error

// A probe applies messages and looks what became of them. A step that does not find
// what it wants ends the check.
type probe struct {
	ctx      context.Context
	db       *sqlx.DB
	newInbox func(*sqlx.DB, inbox.Config) (Inbox, error)
	holders  []*holder
}

func (p *probe) close() {
	for _, h := range p.holders {
		h.end(errBoom)
	}
}

// open returns a new inbox, of the consumer "inboxtest" unless cfg names another, that
// waits for locks as long as a check lasts.
func (p *probe) open(cfg inbox.Config) Inbox {
	if cfg.Consumer == "" {
		cfg.Consumer = "inboxtest"
	}
	if cfg.LockTimeout == 0 {
		cfg.LockTimeout = inbox.DefaultMaxHold
	}
	b, err := p.newInbox(p.db, cfg)
	if err != nil {
		p.failf("new inbox: %v", err)
	}
	return b
}

func (p *probe) exec(statement string, args ...any) {
	if _, err := p.db.ExecContext(p.ctx, statement, args...); err != nil {
		p.failf("%s: %v", statement, err)
	}
}

// writes is a handler that writes one effect.
func writes(id string) handler {
	return func(ctx context.Context, tx *sqlx.Tx, _ int) error { return write(ctx, tx, id) }
}

// write goes without parameters, so that it takes one trip with every driver.
func write(ctx context.Context, tx *sqlx.Tx, id string) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO inboxtest_effect (id) VALUES ('"+id+"')")
	return err
}

// breaks is a handler that returns the error of a statement, hides one that hides it.
func breaks(ctx context.Context, tx *sqlx.Tx, _ int) error { return write(ctx, tx, "") }

func hides(ctx context.Context, tx *sqlx.Tx, i int) error {
	_ = breaks(ctx, tx, i)
	return nil
}

// skip is an error of a handler that chose not to act.
type skip struct{}

func (skip) Error() string { return "skipped" }
func (skip) Skipped() bool { return true }

// never is a handler that must not run. It takes down that it did.
type never struct{ ran bool }

func (n *never) handle(context.Context, *sqlx.Tx, int) error {
	n.ran = true
	return nil
}

// apply applies one message.
func (p *probe) apply(b Inbox, m inbox.Message, fn handler) inbox.Result {
	return p.batch(p.ctx, b, []inbox.Message{m}, fn)[0]
}

// batch applies messages and looks whether there is a result for each.
func (p *probe) batch(ctx context.Context, b Inbox, ms []inbox.Message, fn handler) []inbox.Result {
	rs := b.ApplyBatch(ctx, ms, fn)
	if len(rs) != len(ms) {
		p.failf("%d results for %d messages", len(rs), len(ms))
	}
	for i, r := range rs {
		if why := badResult(r); why != "" {
			p.failf("result of message %q: %s", ms[i].ID, why)
		}
	}
	return rs
}

// badResult says what is wrong with a result, whatever the message.
func badResult(r inbox.Result) string {
	quiet := r.Outcome == inbox.Applied || r.Outcome == inbox.Duplicate
	switch {
	case r.Outcome == 0:
		return "there is no outcome"
	case quiet != (r.Err == nil):
		return fmt.Sprintf("outcome %v with error %v", r.Outcome, r.Err)
	case (r.Outcome == inbox.Again || r.Outcome == inbox.Busy || r.Outcome == inbox.Stale) && !uncharged(r.Err):
		return fmt.Sprintf("outcome %v with an error that charges it: %v", r.Outcome, r.Err)
	}
	return ""
}

func uncharged(err error) bool {
	var e interface{ Uncharged() bool }
	return errors.As(err, &e) && e.Uncharged()
}

// want applies one message and wants that outcome. It returns the error.
func (p *probe) want(outcome inbox.Outcome, b Inbox, m inbox.Message, fn handler) error {
	r := p.apply(b, m, fn)
	p.is(outcome, m, r)
	return r.Err
}

func (p *probe) is(outcome inbox.Outcome, m inbox.Message, r inbox.Result) {
	if r.Outcome != outcome {
		p.failf("message %.60q: %v (%v), want %v", m.ID, r.Outcome, r.Err, outcome)
	}
}

// refused applies one message, and wants that outcome without a call of its handler.
func (p *probe) refused(outcome inbox.Outcome, b Inbox, m inbox.Message) error {
	var n never
	err := p.want(outcome, b, m, n.handle)
	if n.ran {
		p.failf("message %.60q: %v, and its handler was called", m.ID, outcome)
	}
	return err
}

// all wants the outcomes of a batch.
func (p *probe) all(ms []inbox.Message, rs []inbox.Result, outcomes ...inbox.Outcome) {
	for i, r := range rs {
		p.is(outcomes[min(i, len(outcomes)-1)], ms[i], r)
	}
}

// committed wants these effects to be committed, each once, and no other.
func (p *probe) committed(want ...string) {
	var got []string
	if err := p.db.SelectContext(p.ctx, &got, "SELECT id FROM inboxtest_effect ORDER BY seq"); err != nil {
		p.failf("read effects: %v", err)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		p.failf("effects are %q, want %q", got, want)
	}
}

// inOrder wants the effects to have been written in this order.
func (p *probe) inOrder(want ...string) {
	var got []string
	if err := p.db.SelectContext(p.ctx, &got, "SELECT id FROM inboxtest_effect ORDER BY seq"); err != nil {
		p.failf("read effects: %v", err)
	}
	if !slices.Equal(got, want) {
		p.failf("effects are %q, want %q in this order", got, want)
	}
}

// target returns the error of type E in err.
func target[E error](p *probe, err error) E {
	var e E
	if !errors.As(err, &e) {
		p.failf("error is %v (%T), want a %T in it", err, err, e)
	}
	return e
}

// messages returns n messages m0, m1, ... with a fence each.
func messages(n int) []inbox.Message {
	ms := make([]inbox.Message, n)
	for i := range ms {
		ms[i] = inbox.Message{ID: fmt.Sprintf("m%d", i), Digest: []byte{1}, Fences: fences("order", i, 1)}
	}
	return ms
}

func fences(kind string, n int, token int64) []inbox.Fence {
	return []inbox.Fence{{Resource: fmt.Sprintf("%s:%d", kind, n), Token: token}}
}

// effectsOf is a handler that writes the ID of each message, and then does what is in bad.
func effectsOf(ms []inbox.Message, bad map[int]handler) handler {
	return func(ctx context.Context, tx *sqlx.Tx, i int) error {
		if err := write(ctx, tx, ms[i].ID); err != nil {
			return err
		}
		if f := bad[i]; f != nil {
			return f(ctx, tx, i)
		}
		return nil
	}
}

func idsOf(ms []inbox.Message, without ...int) []string {
	var ids []string
	for i, m := range ms {
		if !slices.Contains(without, i) {
			ids = append(ids, m.ID)
		}
	}
	return ids
}

// A holder is a delivery whose handler has written its effect and stays in its
// transaction.
type holder struct {
	p    *probe
	m    inbox.Message
	pid  int // of its backend
	err  chan error
	done chan inbox.Result
	over atomic.Bool
}

// hold lets b apply m and stay in the handler. Its effect is "holder".
func (p *probe) hold(b Inbox, m inbox.Message) *holder {
	h := &holder{p: p, m: m, err: make(chan error, 1), done: make(chan inbox.Result, 1)}
	in := make(chan struct{}, 1)
	go func() {
		rs := b.ApplyBatch(p.ctx, []inbox.Message{m}, func(ctx context.Context, tx *sqlx.Tx, _ int) error {
			if err := tx.GetContext(ctx, &h.pid, "SELECT pg_backend_pid()"); err != nil {
				return err
			}
			if err := write(ctx, tx, "holder"); err != nil {
				return err
			}
			in <- struct{}{}
			return <-h.err
		})
		h.done <- rs[0]
	}()
	select {
	case <-in:
	case r := <-h.done:
		p.failf("message %q of the holder: %v (%v), want that its handler runs", m.ID, r.Outcome, r.Err)
	case <-p.ctx.Done():
		p.failf("the handler of the holder is not called")
	}
	p.holders = append(p.holders, h)
	return h
}

// end lets the handler return err, and returns what became of its message. Only the
// first call counts.
func (h *holder) end(err error) inbox.Result {
	if !h.over.CompareAndSwap(false, true) {
		return inbox.Result{}
	}
	h.err <- err
	return <-h.done
}

// commits ends the holder and wants its effect to be committed.
func (h *holder) commits() { h.p.is(inbox.Applied, h.m, h.end(nil)) }

// fails ends the holder without an effect.
func (h *holder) fails() { h.p.is(inbox.Failed, h.m, h.end(errBoom)) }

// behind starts f and returns when it waits for the holder. The channel brings its result.
func (h *holder) behind(f func() inbox.Result) <-chan inbox.Result {
	done := make(chan inbox.Result, 1)
	go func() { done <- f() }()
	for {
		var n int
		if err := h.p.db.GetContext(h.p.ctx, &n, fmt.Sprintf("SELECT count(*) FROM pg_stat_activity WHERE %d = ANY (pg_blocking_pids(pid))", h.pid)); err != nil {
			h.p.failf("look who waits: %v", err)
		}
		if n > 0 {
			return done
		}
		select {
		case r := <-done:
			h.p.failf("%v (%v), without waiting for who holds what it claims", r.Outcome, r.Err)
		case <-time.After(2 * time.Millisecond):
		}
	}
}
