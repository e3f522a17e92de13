package reentrant

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// AcquireAll takes all of the named locks, or none: leases are in the order of
// the names, and a name that occurs twice has the same lease twice. It waits while
// one of them is busy, as [Locker.Acquire] does, holding only locks whose names
// sort before the one it waits for. So callers of AcquireAll never wait for each
// other in a circle.
//
// Names that ctx carries are entered once more. If ctx carries other leases,
// it does not wait, unless [WaitAtMost] says so; the bound is for each of the names.
func (l *Locker) AcquireAll(ctx context.Context, names []string, opts ...AcquireOption) ([]*Lease, error) {
	sorted := slices.Compact(slices.Sorted(slices.Values(names)))
	held := make([]*Lease, 0, len(sorted))
	for len(held) < len(sorted) {
		rest := sorted[len(held):]
		leases, errs := l.AcquireEach(ctx, rest, opts...)
		n := len(rest) // those that may be kept: all before the first that failed
		if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
			n = i
		}
		held = append(held, leases[:n]...)
		if n == len(rest) {
			break
		}
		_ = errors.Join(l.ReleaseEach(ctx, leases[n:])...) // what is not released ends by its TTL
		err := errs[n]
		if errors.Is(err, ErrBusy) {
			var lease *Lease
			if lease, err = l.Acquire(ctx, rest[n], opts...); err == nil {
				held = append(held, lease)
				continue
			}
		}
		_ = errors.Join(l.ReleaseEach(ctx, held)...)
		return nil, fmt.Errorf("acquire all of %d locks: %w", len(sorted), err)
	}
	all := make([]*Lease, len(names))
	for i, name := range names {
		at, _ := slices.BinarySearch(sorted, name)
		all[i] = held[at]
	}
	return all, nil
}
