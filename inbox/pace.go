package inbox

import "sync"

// A pace chooses how many handlers run between two savepoints. A failing
// message costs its stride a second run, a savepoint costs a trip: with handlers
// of three statements, strides of 8 are faster up to about 4 % of failing
// messages, and a savepoint for each message above.
type pace struct {
	mu      sync.Mutex
	failing float64 // share of the messages, over the last few hundred; guarded by mu
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
