package middleware

import (
	"context"
	"sync"
	"time"

	"github.com/onceward/onceward/inbox"
)

// An Event tells what became of one delivery of a message.
type Event struct {
	Message *Message
	Class   Class         // of Err
	Err     error         // what the handler answered
	Outcome inbox.Outcome // what the inbox decided; 0 if it was not asked
	Took    time.Duration // by the whole batch
}

// Observe calls told for each message once its batch was handled: on the
// goroutine of the batch, possibly for several batches at once. told must be
// fast and cannot change the result. Observe sees what is inside of it, so it
// stands first.
func Observe(told func(Event)) Middleware {
	if told == nil {
		panic("middleware: Observe of a nil function")
	}
	return func(next Handler) Handler {
		return HandlerFunc(func(ctx context.Context, ms []*Message) []error {
			start := time.Now()
			n := &notes{outcomes: make(map[*Message]inbox.Outcome, len(ms))}
			errs := Outcomes(next.Handle(context.WithValue(ctx, notesKey{}, n), ms), len(ms))
			took := time.Since(start)
			for i, m := range ms {
				told(Event{Message: m, Class: Classify(errs[i]), Err: errs[i], Outcome: n.of(m), Took: took})
			}
			return errs
		})
	}
}

type notesKey struct{}

// notes carry what was learned inside to the observer outside.
type notes struct {
	mu       sync.Mutex // guards outcomes
	outcomes map[*Message]inbox.Outcome
}

func (n *notes) of(m *Message) inbox.Outcome {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.outcomes[m]
}

// note tells the observer, if there is one, what the inbox decided about m.
func note(ctx context.Context, m *Message, o inbox.Outcome) {
	if n, ok := ctx.Value(notesKey{}).(*notes); ok {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.outcomes[m] = o
	}
}
