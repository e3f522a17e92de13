package inbox

import "sync"

// A pace chooses how many messages share a transaction, see [pace.batch], and how many
// handlers run between two savepoints. A failing
// message costs its stride a second run, a savepoint costs a trip: with handlers
// of three statements, strides of 8 are faster up to about 4 % of failing
// messages, and a savepoint for each message above.
type pace struct {
	mu      sync.Mutex
	failing float64 // share of the messages, over the last few hundred; guarded by mu
	halved  int     // how often the batch is halved; guarded by mu
	calm    int     // transactions since the last deadlock; guarded by mu
}

const tooManyFail = 0.04

func (p *pace) stride(configured int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failing > tooManyFail {
		return 1
	}
	return configured
}

// note tells how many of so many messages failed.
func (p *pace) note(failed, of int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	weight := float64(of) / 256 // at most 64/256
	p.failing += weight * (float64(failed)/float64(of) - p.failing)
}

// calmAfter is how many transactions without a deadlock let batches be twice as large
// again.
const calmAfter = 32

// batch returns how many messages, up to most, a transaction has. Handlers that share rows
// between keys, such as a stock, take their locks in the order of the messages, and the
// longer a transaction, the more others it meets: with 64 messages nearly 2 % of such
// transactions deadlock, with 4 nearly none.
func (p *pace) batch(most int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(1, most>>p.halved)
}

// noteEnd tells how a transaction of so many messages ended.
func (p *pace) noteEnd(messages int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case messages > 1 && state(err) == deadlockDetected:
		p.calm = 0
		if MaxBatch>>p.halved > 1 {
			p.halved++
		}
	case err == nil && p.halved > 0:
		if p.calm++; p.calm == calmAfter {
			p.calm = 0
			p.halved--
		}
	}
}
