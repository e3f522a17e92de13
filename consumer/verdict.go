package consumer

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/onceward/onceward/middleware"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	// mostWait bounds the pause of a message whose key is busy: what it waits for
	// may be over long before the other one's lease is.
	mostWait = time.Second
	// leastWait is the pause after the first try that was nobody's fault. It
	// doubles up to mostWait, so that a backend that is away is not hammered.
	leastWait = 5 * time.Millisecond
)

// A verdict says what becomes of an item after a try.
type verdict struct {
	class middleware.Class
	err   error
	alone bool // not together with others next time

	// For a message that is tried again:
	next  *middleware.Message
	delay time.Duration
	waits int
}

// judge turns the error of a handler for one message into a verdict. A handler
// that was cut short has not failed, whatever it makes of that. It calls methods
// of the error, so it must not be called under a mutex.
func (c *Config) judge(it *item, err error, cut bool) verdict {
	v := verdict{class: middleware.Classify(err), err: err}
	if cut && v.class == middleware.Retry {
		v.class = middleware.Uncharged
	}
	asked, asks := middleware.RetryDelay(err)
	switch v.class {
	case middleware.Retry:
		v.delay = c.backoff(it.msg.Attempt)
		if asks {
			v.delay = asked
		}
		v.next = again(it, 1)
	case middleware.Uncharged:
		v.waits = it.waits + 1
		v.delay = spread(doubled(leastWait, it.waits, mostWait))
		if asks {
			v.delay = spread(min(asked, mostWait))
		}
		v.next = again(it, 0)
	case middleware.Halt:
		v.delay, v.next = c.RetryMax, again(it, 0) // the consumer stops before that
	}
	return v
}

// blame is the verdict on each message of a batch that failed as a whole. The
// guilty one is not known, so next time each is alone.
func (c *Config) blame(it *item, err error) verdict {
	return verdict{
		class: middleware.Retry,
		err:   err,
		alone: true,
		delay: c.backoff(it.msg.Attempt),
		next:  again(it, 1),
	}
}

// again returns the message for the next try: another one, since a handler that
// was not waited for may still read the last. It does not share memory with the
// fetch that the record came from: one small record that stays would keep all
// of that fetch.
func again(it *item, charge int) *middleware.Message {
	m := *it.msg
	m.Attempt += charge
	if !it.detached {
		m.Record = detach(m.Record)
	}
	return &m
}

func detach(r *kgo.Record) *kgo.Record {
	c := *r
	c.Key, c.Value = bytes.Clone(r.Key), bytes.Clone(r.Value)
	c.Headers = slices.Clone(r.Headers)
	for i := range c.Headers {
		c.Headers[i].Value = bytes.Clone(c.Headers[i].Value)
	}
	return &c
}

// backoff is the pause after a failed attempt, from 1.
func (c *Config) backoff(attempt int) time.Duration {
	d := doubled(c.RetryMin, attempt-1, c.RetryMax)
	return d - rand.N(d/2+1)
}

// doubled returns d doubled n times, at most limit.
func doubled(d time.Duration, n int, limit time.Duration) time.Duration {
	for ; n > 0 && d < limit; n-- {
		d *= 2
	}
	return min(d, limit)
}

// spread moves d by up to a quarter, so that those who wait for one thing do not
// all come back at once.
func spread(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return d - d/4 + rand.N(d/2+1)
}
