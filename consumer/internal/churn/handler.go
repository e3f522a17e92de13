package churn

import (
	"context"
	"errors"
	"hash/fnv"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward/middleware"
	"github.com/twmb/franz-go/pkg/kgo"
)

func identify(r *kgo.Record) (middleware.Identity, error) {
	return middleware.Identity{Key: string(r.Key), ID: string(r.Key) + "/" + string(r.Value)}, nil
}

// handler is what the members run. What goes wrong with a message depends on its
// ID and on which delivery it is, so that it is the same in every run.
func (w *world) handler(member string) middleware.Handler {
	return middleware.HandlerFunc(func(ctx context.Context, ms []*middleware.Message) []error {
		errs := make([]error, len(ms))
		for i, m := range ms {
			errs[i] = w.handle(ctx, member, m)
		}
		return errs
	})
}

func (w *world) handle(ctx context.Context, member string, m *middleware.Message) error {
	delivery, leave := w.oracle.enter(member, m.Key, m.ID)
	defer leave()
	hash := fnv.New32a()
	hash.Write([]byte(m.ID))
	dice := hash.Sum32()
	first := delivery == 1

	if err := w.passGate(ctx); err != nil {
		return err
	}
	switch {
	case first && dice%101 == 0:
		return errors.New("transient")
	case first && dice%103 == 0:
		return middleware.Busy(10*time.Millisecond, errors.New("held"))
	case first && dice%499 == 0:
		panic("churn")
	case first && dice%997 == 0: // hangs until it is told to end
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-*w.round.Load():
		}
	case first && dice%2503 == 0: // outlives its partition, and has its effect late
		<-*w.round.Load()
	default:
		pause := time.NewTimer(time.Duration(dice%3000) * time.Microsecond)
		defer pause.Stop()
		select {
		case <-pause.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	w.oracle.apply(member, m.Key, m.ID, m.Record)
	return nil
}

// passGate waits until the gate is open.
func (w *world) passGate(ctx context.Context) error {
	gate := *w.gate.Load()
	select {
	case <-gate:
		return nil
	default:
	}
	select {
	case w.waiting <- struct{}{}:
	default:
	}
	select {
	case <-gate:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// closeGate holds all handlers that come to the gate from now on.
func (w *world) closeGate() {
	for _, ch := range []chan struct{}{w.waiting, w.caught} { // of an earlier round
		select {
		case <-ch:
		default:
		}
	}
	gate := make(chan struct{})
	w.gate.Store(&gate)
}

// openGate may be called again.
func (w *world) openGate() { swap(&w.gate, closed()) }

// nextRound lets the handlers go that wait for the end of a round.
func (w *world) nextRound() { swap(&w.round, make(chan struct{})) }

// lastRound lets them go as well, and all that come later.
func (w *world) lastRound() { swap(&w.round, closed()) }

// swap puts a channel in the place of another one, which it closes.
func swap(p *atomic.Pointer[chan struct{}], ch chan struct{}) {
	before := p.Swap(&ch)
	if before == nil {
		return
	}
	select {
	case <-*before:
	default:
		close(*before)
	}
}

func closed() chan struct{} {
	ch := make(chan struct{})
	close(ch)
	return ch
}
