package inboxtest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/onceward/onceward/inbox"
)

// An Inbox is what is tested: an [inbox.Inbox], or something around one.
type Inbox interface {
	// ApplyBatch does what [inbox.Inbox.ApplyBatch] says. It hands its context on.
	ApplyBatch(ctx context.Context, ms []inbox.Message, fn func(ctx context.Context, tx *sqlx.Tx, i int) error) []inbox.Result
}

// A check proves one sentence of the contract.
type check struct {
	name, contract string
	steps          func(p *probe)
}

// checks is the contract.
var checks = [][]check{claimChecks, fenceChecks, raceChecks, batchChecks, crashChecks}

// checkWithin bounds a check: an inbox that does not answer fails it.
const checkWithin = time.Minute

// Run tests an inbox. newDB returns a pool on a database, or a schema, that has the
// inbox's tables, where the checks may make tables of their own and that no other test
// uses. A check has up to ten connections open at once; their role must see in
// pg_stat_activity who waits for whom. newInbox returns an inbox on the pool; it may
// change cfg, such as its Schema, but not what a check has set.
//
// It takes real time, about two seconds.
func Run(t *testing.T, newDB func(t *testing.T) *sqlx.DB, newInbox func(db *sqlx.DB, cfg inbox.Config) (Inbox, error)) {
	for _, group := range checks {
		for _, c := range group {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				if err := c.run(t.Context(), newDB(t), newInbox); err != nil {
					t.Errorf("%v\ncontract: %s", err, c.contract)
				}
			})
		}
	}
}

// run makes the steps of c and returns why one of them failed.
func (c *check) run(ctx context.Context, db *sqlx.DB, newInbox func(*sqlx.DB, inbox.Config) (Inbox, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, checkWithin, fmt.Errorf("the check was not done within %v", checkWithin))
	defer cancel()
	p := &probe{ctx: ctx, db: db, newInbox: newInbox}
	defer p.close()
	return p.catch(func() {
		p.exec(`CREATE TABLE inboxtest_effect (seq bigserial PRIMARY KEY, id text NOT NULL CHECK (id <> ''), tx text NOT NULL DEFAULT txid_current()::text)`)
		c.steps(p)
	})
}

// A failure ends a check, from however deep in its steps.
type failure struct{ error }

// catch runs steps and returns why one of them failed.
func (p *probe) catch(steps func()) (err error) {
	defer func() {
		switch v := recover().(type) {
		case nil:
		case failure:
			err = v.error
		default:
			panic(v)
		}
	}()
	steps()
	return nil
}

func (p *probe) failf(format string, args ...any) {
	err := fmt.Errorf(format, args...)
	if p.ctx.Err() != nil {
		err = errors.Join(err, context.Cause(p.ctx))
	}
	panic(failure{err})
}
