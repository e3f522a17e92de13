package service

import (
	"context"

	"github.com/onceward/onceward/middleware"
)

// Hooks let somebody watch the service at work. Each may be nil. They may be called
// from several goroutines at once.
type Hooks struct {
	// Holding is told of each message that has its lock, if the guard has locks, and is
	// about to be handled: its order was looked at, the payment service was not asked,
	// nothing is claimed. ctx carries the lease.
	Holding func(ctx context.Context, m *middleware.Message)

	// Decided is told what became of each message.
	Decided func(middleware.Event)

	// Scanned is told of each round of the scan job.
	Scanned func(Round)

	// Marking is called by the scan job when its events are told and not yet marked,
	// two holds deep. ctx carries the lease. An error ends the round.
	Marking func(ctx context.Context, events []Event) error
}

func (h Hooks) withDefaults() Hooks {
	if h.Holding == nil {
		h.Holding = func(context.Context, *middleware.Message) {}
	}
	if h.Decided == nil {
		h.Decided = func(middleware.Event) {}
	}
	if h.Scanned == nil {
		h.Scanned = func(Round) {}
	}
	if h.Marking == nil {
		h.Marking = func(context.Context, []Event) error { return nil }
	}
	return h
}
