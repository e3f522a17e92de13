package watchdog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"
)

// A Verdict is the server's answer about one lease.
type Verdict int

const (
	// Unknown: no answer. Perhaps the lease is still held, so it is asked again.
	Unknown Verdict = iota
	// Held: renewed for another TTL.
	Held
	// Gone: the lease ended, and nobody else has it.
	Gone
	// Taken: somebody else has it.
	Taken
)

// Config is what a [Watchdog] needs to know.
type Config struct {
	// Renew extends leases of one group by their TTL and returns a verdict for
	// each, in order. A shorter answer, or a panic, counts as [Unknown]. It runs
	// on a goroutine of its own, at most Flights times at once for a group, and
	// must return when ctx ends. Required.
	Renew func(ctx context.Context, leases []*Lease) []Verdict

	// Chunk is how many leases one call of Renew gets at most. Defaults to 100.
	Chunk int

	// Flights is how many calls of Renew one group may have under way.
	// Defaults to 2: the second works while the first hangs.
	Flights int

	// Panicked is told of a panic in Renew or in a Holder; it may be nil.
	Panicked func(v any, stack []byte)
}

func (c Config) withDefaults() Config {
	c.Chunk = cmp.Or(c.Chunk, 100)
	c.Flights = cmp.Or(c.Flights, 2)
	return c
}

func (c Config) validate() error {
	var errs []error
	if c.Renew == nil {
		errs = append(errs, errors.New("Renew is nil, must be a function"))
	}
	if c.Chunk < 1 {
		errs = append(errs, fmt.Errorf("Chunk is %d, must be at least 1", c.Chunk))
	}
	if c.Flights < 1 {
		errs = append(errs, fmt.Errorf("Flights is %d, must be at least 1", c.Flights))
	}
	return errors.Join(errs...)
}

// Margin is how long before the end of its TTL a lease is no longer trusted: a
// tenth, for the drift of clocks and for the time that a busy machine takes to
// run a timer, within 20 ms and 1 s.
func Margin(ttl time.Duration) time.Duration {
	return min(max(ttl/10, 20*time.Millisecond), time.Second)
}
