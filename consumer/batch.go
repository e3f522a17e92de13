package consumer

import (
	"context"
	"time"

	"github.com/onceward/onceward/middleware"
)

// A batch is what one call of a handler gets: heads of lanes, so that their keys
// differ.
type batch struct {
	route  *route
	items  []*item
	msgs   []*middleware.Message
	ctx    context.Context // ends when one of its parts, or the consumer, does not wait any longer
	cancel context.CancelCauseFunc
}

// A route is a [Route] at work. The dispatcher's mutex guards the queues and the pace.
type route struct {
	Route

	ready queue[*lane] // share batches
	alone queue[*lane] // run as batches of one
	turn  bool         // alone comes first next time

	// pace is the recent time per message, zero until the first batch ended.
	pace time.Duration
}

// share returns how many of n ready lanes one of some idle workers should take.
func (r *route) share(n, idle, most int, target time.Duration) int {
	if r.pace == 0 {
		// Measure one before trusting many: a first batch of slow messages would
		// hold up a rebalance.
		return 1
	}
	fit := max(1, int(target/r.pace))
	return min((n+idle-1)/idle, most, fit)
}

// measure learns from a batch that took some time.
func (r *route) measure(b *batch, took, target time.Duration) {
	if len(b.items) == 1 {
		l := b.items[0].lane
		slow := took > target
		if l.alone = slow; slow && r.pace != 0 {
			return // it runs alone from now on, and says nothing of the others
		}
	}
	sample := max(took/time.Duration(len(b.items)), 1)
	if r.pace == 0 {
		r.pace = sample
	}
	r.pace = max((3*r.pace+sample)/4, 1)
}
