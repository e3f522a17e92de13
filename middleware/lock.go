package middleware

import (
	"context"
	"errors"
	"sync"

	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/reentrant"
)

const (
	// maxHints bounds the memory of a [Lock] for fences that were refused.
	maxHints = 10_000
	// maxHint is what a lock can be asked for: a fence that is stored above it is no
	// lock's, and no other can get past it.
	maxHint = 1 << 52
)

// Lock holds the locks of each message (its key, and the names in Also) while the
// next handler works. It takes those of a whole batch in one round trip and waits for
// none: a message whose key is busy gets a [*reentrant.BusyError], which is
// retried and charged to nobody, and the others go on.
//
// It must stand outside of [Inbox], so that a lock is held from before the
// transaction until after its COMMIT, and its fence is known to the claim. The
// context of the next handler carries the leases; handlers get it narrowed to their
// own (see [reentrant.Narrow]), so that it ends before theirs may.
//
// When the inbox refuses a fence as stale (a new Redis master may lag behind),
// the next acquire of that key asks for a higher one.
func Lock(locker *reentrant.Locker) Middleware {
	if locker == nil {
		panic("middleware: Lock of a nil Locker")
	}
	hints := &fenceHints{least: map[string]int64{}}
	return func(next Handler) Handler {
		return HandlerFunc(func(ctx context.Context, ms []*Message) []error {
			names, of := allNames(ms)
			leases, errs := locker.AcquireEach(ctx, names, reentrant.FenceHints(hints.take(names)))
			// Deferred, so that a panic of next gives the locks back as well.
			defer func() { _ = locker.ReleaseEach(ctx, leases) }() // a lock that is not released ends by its TTL

			out := make([]error, len(ms))
			for j, err := range errs {
				if err != nil && out[of[j]] == nil {
					out[of[j]] = err
				}
			}
			releasePartial(ctx, locker, leases, of, out)
			HandOn(reentrant.With(ctx, held(leases)...), next, ms, out)
			hints.learn(leases, out)
			return out
		})
	}
}

// allNames returns the names of all messages, and for each name the index of its
// message.
func allNames(ms []*Message) (names []string, of []int) {
	names, of = make([]string, 0, len(ms)), make([]int, 0, len(ms))
	for i, m := range ms {
		for _, name := range m.Names() {
			names, of = append(names, name), append(of, i)
		}
	}
	return names, of
}

// releasePartial gives back at once what was taken for messages that did not get
// all of their locks.
func releasePartial(ctx context.Context, locker *reentrant.Locker, leases []*reentrant.Lease, of []int, errs []error) {
	partial := make([]*reentrant.Lease, 0)
	for j, lease := range leases {
		if lease != nil && errs[of[j]] != nil {
			partial = append(partial, lease)
			leases[j] = nil
		}
	}
	_ = locker.ReleaseEach(ctx, partial) // as above
}

func held(leases []*reentrant.Lease) []*reentrant.Lease {
	all := make([]*reentrant.Lease, 0, len(leases))
	for _, lease := range leases {
		if lease != nil {
			all = append(all, lease)
		}
	}
	return all
}

// fenceHints remembers which fence a lock must get past, by name.
type fenceHints struct {
	mu    sync.Mutex // guards least
	least map[string]int64
}

// take returns the hints for names, and forgets them.
func (h *fenceHints) take(names []string) map[string]int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.least) == 0 {
		return nil
	}
	hints := map[string]int64{}
	for _, name := range names {
		if least, ok := h.least[name]; ok {
			hints[name] = least
			delete(h.least, name)
		}
	}
	return hints
}

// learn remembers the fences that the inbox refused. Losing one costs another
// refusal, never an effect.
func (h *fenceHints) learn(leases []*reentrant.Lease, errs []error) {
	for _, err := range errs {
		var stale *inbox.StaleError
		if !errors.As(err, &stale) {
			continue
		}
		for _, lease := range leases {
			if lease == nil || lease.Resource() != stale.Resource || stale.Stored >= maxHint {
				continue
			}
			h.mu.Lock()
			if len(h.least) >= maxHints {
				clear(h.least)
			}
			h.least[lease.Name()] = stale.Stored + 1
			h.mu.Unlock()
		}
	}
}
