package inbox

import (
	"context"
	"fmt"
	"sync"
)

// A memory is what an inbox remembers of how many messages were decided before, of the
// last that came. After a rebalance or a rewind, whole batches are.
type memory struct {
	mu  sync.Mutex
	old float64 // share of the messages; guarded by mu
}

func (m *memory) mostlyOld() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.old > 0.5
}

// note tells of messages that have their results. One full batch decides; of single
// messages it takes about 45 in a row.
func (m *memory) note(es []*entry) {
	old := 0
	for _, e := range es {
		if o := e.result.Outcome; o == Duplicate || o == Conflict {
			old++
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	weight := min(1, float64(len(es))/MaxBatch)
	m.old += weight * (float64(old)/float64(len(es)) - m.old)
}

// recall gives messages that were decided before their outcome, and returns the others.
// The claim would find them as well, but locks and updates the fence of each for that, and
// writes 200 bytes to the log; it costs those trips that are new. So it is for when most
// of them are old.
//
// The transaction is for PgBouncer: without one, the two flights of lib/pq may meet two
// servers.
func (b *Inbox) recall(ctx context.Context, es []*entry) (rest []*entry, err error) {
	t, err := b.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer t.rollback()
	decided, _, err := b.lookUp(ctx, t.tx, es, false)
	if err != nil {
		return nil, fmt.Errorf("look for messages decided before: %w", err)
	}
	for _, e := range es {
		if first, ok := decided[e.key]; ok {
			e.result = e.old(first, true, nil)
		} else {
			rest = append(rest, e)
		}
	}
	return rest, nil
}
