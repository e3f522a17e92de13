package crash

import "context"

// A Point is a place on the way of a transaction.
type Point int

const (
	// AfterClaim: at least one message may run, and no handler was called.
	AfterClaim Point = iota + 1
	// AfterHandler: all handlers of the transaction have run.
	AfterHandler
	// BeforeCommit: all is written, and COMMIT comes next.
	BeforeCommit
	// AfterCommit: COMMIT was answered, and nobody was told.
	AfterCommit
)

func (p Point) String() string {
	switch p {
	case AfterClaim:
		return "after claim"
	case AfterHandler:
		return "after handler"
	case BeforeCommit:
		return "before commit"
	case AfterCommit:
		return "after commit"
	}
	return "no point"
}

// A Hook is called at each point that a transaction reaches, on its goroutine. If it
// returns an error, the transaction ends as it does when its process dies: the
// connection closes, and nothing more is sent. ctx is that of the call.
type Hook func(ctx context.Context, p Point) error

type key struct{}

// With returns a context that carries h.
func With(ctx context.Context, h Hook) context.Context { return context.WithValue(ctx, key{}, h) }

// From returns the hook of ctx, or nil.
func From(ctx context.Context) Hook {
	h, _ := ctx.Value(key{}).(Hook)
	return h
}
