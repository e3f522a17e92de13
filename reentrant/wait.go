package reentrant

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

const (
	firstPause = 2 * time.Millisecond
	maxPause   = 250 * time.Millisecond
)

// wait takes a lock that ctx does not carry, asking again with growing pauses
// while it is busy.
func (l *Locker) wait(ctx context.Context, name string, o acquireOptions) (*Lease, error) {
	start := time.Now()
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		leases, errs := l.try(ctx, []string{name}, o)
		err := errs[0]
		var busy *BusyError
		if !errors.As(err, &busy) || o.wait == 0 {
			return leases[0], err
		}
		// Half of the pause is random, so that those who wait do not come back
		// together. A lease that ends sooner is worth coming for.
		d := pause/2 + time.Duration(rand.Int64N(int64(pause)))
		if busy.Left > 0 {
			d = min(d, busy.Left+time.Millisecond)
		}
		if o.wait > 0 {
			if left := o.wait - time.Since(start); left <= 0 {
				return nil, fmt.Errorf("acquire: waited %v: %w", o.wait, busy)
			} else {
				d = min(d, left)
			}
		}
		select {
		case <-time.After(d):
		case <-ctx.Done():
			return nil, fmt.Errorf("acquire: %w: %w", busy, context.Cause(ctx))
		}
	}
}
