package locktest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/onceward/onceward/reentrant"
)

// A check proves one sentence of the contract.
type check struct {
	name, contract string
	steps          func(p *probe)
}

// checks is the contract.
var checks = [][]check{holdChecks, replayChecks, timeChecks, fenceChecks, queueChecks, newsChecks, batchChecks}

// checkWithin bounds a check: a store that does not answer fails it.
const checkWithin = time.Minute

// Run tests a store. newStore returns an empty one that no other test uses, and frees
// it with the test's Cleanup.
func Run(t *testing.T, newStore func(t *testing.T) reentrant.Store) {
	for _, group := range checks {
		for _, c := range group {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				if err := c.run(t.Context(), newStore(t)); err != nil {
					t.Errorf("%v\ncontract: %s", err, c.contract)
				}
			})
		}
	}
}

// run makes the steps of c and returns why one of them failed.
func (c *check) run(ctx context.Context, s reentrant.Store) error {
	ctx, cancel := context.WithTimeoutCause(ctx, checkWithin, fmt.Errorf("the check was not done within %v", checkWithin))
	defer cancel()
	p := newProbe(ctx, s)
	defer p.close()
	return p.catch(func() { c.steps(p) })
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
