package reentrant

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"
)

const (
	// DefaultTTL is the length of a lease.
	DefaultTTL = 30 * time.Second
	// MinTTL is the shortest lease: below it, the margin and a busy machine
	// would leave nothing to work with.
	MinTTL = 250 * time.Millisecond
	// maxHint is half of how far a script can count, so that fences go on growing
	// after it. As microseconds it is in the year 2112.
	maxHint = 1 << 52
	// MaxNameBytes is the length limit of a lock's name.
	MaxNameBytes = 1024
)

// Config says how a [Locker] locks. All processes that must exclude each other
// need the same Prefix and Shards.
type Config struct {
	// Prefix begins every key. Applications with different prefixes never meet.
	//
	// Defaults to "onceward".
	Prefix string

	// Shards is over how many hash tags the locks are spread. Each has a fence
	// counter of its own, which stays for ever.
	//
	// Defaults to 256.
	Shards int

	// TTL is how long a lease lasts when its holder dies. It is renewed each
	// third of it, and relied on for a tenth less (at least 20 ms, at most 1 s).
	// It must be whole milliseconds.
	//
	// Defaults to [DefaultTTL]; at least [MinTTL].
	TTL time.Duration

	// MaxHold ends a lease that has been held for so long, renewed or not: a
	// guard against handlers that hang. 0 means that there is no limit.
	MaxHold time.Duration

	// SingleKeyScripts keeps each script run to one lock. It is always so in a
	// cluster; set it for a proxy that spreads keys behind a single address.
	SingleKeyScripts bool

	// Logger gets one line for each lease that was lost.
	//
	// Defaults to [slog.Default].
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	c.Prefix = cmp.Or(c.Prefix, "onceward")
	c.Shards = cmp.Or(c.Shards, 256)
	c.TTL = cmp.Or(c.TTL, DefaultTTL)
	c.Logger = cmp.Or(c.Logger, slog.Default())
	return c
}

func (c Config) validate() error {
	var errs []error
	if strings.ContainsAny(c.Prefix, "{}") {
		errs = append(errs, fmt.Errorf("Prefix is %q, must not contain braces", c.Prefix))
	}
	if c.Shards < 1 || c.Shards > 16384 {
		errs = append(errs, fmt.Errorf("Shards is %d, must be between 1 and 16384", c.Shards))
	}
	if err := validTTL("TTL", c.TTL); err != nil {
		errs = append(errs, err)
	}
	if c.MaxHold < 0 || c.MaxHold > 0 && c.MaxHold < c.TTL {
		errs = append(errs, fmt.Errorf("MaxHold is %v, must be 0 (no limit) or at least TTL (%v)", c.MaxHold, c.TTL))
	}
	return errors.Join(errs...)
}

func validTTL(field string, ttl time.Duration) error {
	switch {
	case ttl < MinTTL:
		return fmt.Errorf("%s is %v, must be at least %v", field, ttl, MinTTL)
	case ttl%time.Millisecond != 0:
		return fmt.Errorf("%s is %v, must be whole milliseconds", field, ttl)
	}
	return nil
}

func validName(name string) error {
	switch {
	case strings.TrimSpace(name) == "":
		return fmt.Errorf("%w: %q, must not be empty or blank", ErrName, name)
	case len(name) > MaxNameBytes:
		return fmt.Errorf("%w: %q... has %d bytes, must have at most %d", ErrName, name[:32], len(name), MaxNameBytes)
	}
	return nil
}

// An AcquireOption changes one call of Acquire, AcquireEach or Do.
type AcquireOption interface{ apply(*acquireOptions) }

type acquireOptions struct {
	wait    time.Duration // how long to wait for a busy lock; negative: until ctx ends
	waitSet bool
	fixed   time.Duration // length of a lease that is not renewed, or 0
	hints   map[string]int64
}

type acquireOption func(*acquireOptions)

func (f acquireOption) apply(o *acquireOptions) { f(o) }

// WaitAtMost bounds how long Acquire waits for a busy lock; 0 means one try. It
// overrides the default: until ctx ends, or one try if ctx carries another lock.
func WaitAtMost(d time.Duration) AcquireOption {
	return acquireOption(func(o *acquireOptions) { o.wait, o.waitSet = max(0, d), true })
}

// FixedLease makes the lease last for d and no longer: it is never renewed.
// d overrides [Config.TTL] and has the same limits.
func FixedLease(d time.Duration) AcquireOption {
	return acquireOption(func(o *acquireOptions) { o.fixed = d })
}

// FenceHints asks for a fence of at least the given number for each name in it.
// It is for a holder whose fence was refused because a higher one is known:
// hint = that one + 1.
func FenceHints(hints map[string]int64) AcquireOption {
	return acquireOption(func(o *acquireOptions) { o.hints = hints })
}

func options(opts []AcquireOption) (acquireOptions, error) {
	if len(opts) == 0 {
		return acquireOptions{wait: -1}, nil // with no allocation
	}
	return applied(opts)
}

func applied(opts []AcquireOption) (acquireOptions, error) {
	o := acquireOptions{wait: -1}
	for _, opt := range opts {
		opt.apply(&o)
	}
	for name, hint := range o.hints {
		if hint < 0 || hint > maxHint {
			return o, fmt.Errorf("FenceHints of %q is %d, must be between 0 and 2^52", name, hint)
		}
	}
	if o.fixed != 0 {
		return o, validTTL("FixedLease", o.fixed)
	}
	return o, nil
}
