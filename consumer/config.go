package consumer

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"time"

	"github.com/onceward/onceward/middleware"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Bounds on what follows a drain. They are short, so that the default drain and
// all of them fit into the 15 s that Fx gives to stopping.
const (
	// cancelGrace is how long handlers get to return after their context ended.
	cancelGrace = time.Second
	// commitTimeout bounds one commit.
	commitTimeout = 3 * time.Second
	// leaveTimeout bounds leaving the group.
	leaveTimeout = 2 * time.Second
	// revokeReserve is what a revoke may take beyond its drain: the grace, a
	// periodic commit that is in the way, and its own commit.
	revokeReserve = cancelGrace + 2*commitTimeout
)

// Config is what a [Consumer] needs to know. Zero means the default.
type Config struct {
	// Group is the consumer group. Required.
	Group string

	// Client names the brokers (kgo.SeedBrokers) and says how to talk to them:
	// TLS, SASL, client ID, balancers, hooks. Required. What the other fields
	// say, and group, topics, rebalance callbacks, auto-commit and isolation
	// level, are not to be set here: [New] and [Consumer.Run] refuse them.
	Client []kgo.Opt

	// Workers is how many batches are handled at once. Defaults to 4.
	Workers int

	// BatchMax is how many messages one batch may have. Defaults to 64.
	BatchMax int

	// BatchTime is how long handling a batch should take. Batches shrink until
	// it is met, by the recent time per message of their route. Defaults to 50 ms.
	BatchTime time.Duration

	// Window is how many records of a partition may be in memory from the first
	// undecided one on. A partition above it is paused until half is left; what
	// one more poll brings comes on top. Defaults to 1,000, must be at least 2.
	Window int

	// WindowBytes is the same bound by the size of keys, values and headers.
	// Defaults to 64 MiB.
	WindowBytes int64

	// CommitEvery is the pause between two commits of offsets. Partitions that
	// are taken away are committed at once. Defaults to 1 s.
	CommitEvery time.Duration

	// DrainTimeout is how long handlers may go on when their partition is taken
	// away or the consumer stops. Then their context ends, and 1 s later they are
	// no longer waited for. It must leave 7 s plus one HeartbeatInterval of
	// RebalanceTimeout, and should leave 5 s of what the application has for
	// stopping (Fx: 15 s for all hooks). Defaults to 10 s.
	DrainTimeout time.Duration

	// RebalanceTimeout is how long the group waits for a member in a rebalance.
	// Defaults to 60 s.
	RebalanceTimeout time.Duration

	// SessionTimeout is how long the group waits for a heartbeat. Defaults to 45 s.
	SessionTimeout time.Duration

	// HeartbeatInterval is the pause between two heartbeats, at most a third of
	// SessionTimeout. Defaults to 3 s.
	HeartbeatInterval time.Duration

	// RetryMin is the pause after the first failure of a message. Each further
	// one doubles it, up to RetryMax. Pauses are cut by up to a half at random.
	// They default to 100 ms and 30 s.
	RetryMin, RetryMax time.Duration

	// ConnectTimeout is how long [Consumer.Run] tries to reach a broker before
	// it gives up. Defaults to 10 s.
	ConnectTimeout time.Duration

	// Logger gets what is lost, refused, failing or unusual, and nothing per
	// message that goes well. Defaults to slog.Default().
	Logger *slog.Logger

	// Hooks observe the consumer.
	Hooks Hooks

	markEvery time.Duration // other than the constant in tests
}

// Hooks observe a [Consumer]. They must be fast and must not call it.
type Hooks struct {
	// Revoked is told of partitions that are no longer this consumer's. It runs
	// on the client's group goroutine, for which the group waits, or on Run's.
	// Calls may overlap only while the consumer stops.
	Revoked func(Revoked)
}

// Revoked tells what a rebalance, a lost membership or a stop took away.
type Revoked struct {
	// Partitions by topic.
	Partitions map[string][]int32
	// Lost is true if the member was no longer in the group, so that nothing was
	// committed.
	Lost bool
	// Undecided is how many records had been fetched and were not decided when
	// it began.
	Undecided int
	// InFlight is how many of them were with a handler.
	InFlight int
	// Abandoned is how many were still with a handler when it ended.
	Abandoned int
	// Took is how long draining and committing took.
	Took time.Duration
}

// A Route says what becomes of the records of its topics.
type Route struct {
	// Topics of this route; no topic is in two routes. Required.
	Topics []string
	// Identify derives key and ID of a record. Records of one key are handled
	// one at a time, over all topics and routes. Required.
	Identify middleware.Identify
	// Handler gets the messages. Required.
	Handler middleware.Handler
	// Marker is told which offsets are decided: the inbox of Handler, where
	// [inbox.PurgeConfig.Marks] is set. It needs Kafka 3.1 or newer, which says the ID of the
	// topic with each fetch, and kgo.ConsumeResetOffset at the start, as is the default:
	// else a reset may skip records that nobody has decided. Nil: nobody.
	Marker Marker
}

func (c Config) withDefaults() Config {
	c.Workers = cmp.Or(c.Workers, 4)
	c.BatchMax = cmp.Or(c.BatchMax, 64)
	c.BatchTime = cmp.Or(c.BatchTime, 50*time.Millisecond)
	c.Window = cmp.Or(c.Window, 1000)
	c.WindowBytes = cmp.Or(c.WindowBytes, 64<<20)
	c.CommitEvery = cmp.Or(c.CommitEvery, time.Second)
	c.DrainTimeout = cmp.Or(c.DrainTimeout, 10*time.Second)
	c.RebalanceTimeout = cmp.Or(c.RebalanceTimeout, 60*time.Second)
	c.SessionTimeout = cmp.Or(c.SessionTimeout, 45*time.Second)
	c.HeartbeatInterval = cmp.Or(c.HeartbeatInterval, 3*time.Second)
	c.RetryMin = cmp.Or(c.RetryMin, 100*time.Millisecond)
	c.RetryMax = cmp.Or(c.RetryMax, 30*time.Second)
	c.ConnectTimeout = cmp.Or(c.ConnectTimeout, 10*time.Second)
	c.markEvery = cmp.Or(c.markEvery, markEvery)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

func (c Config) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if strings.TrimSpace(c.Group) == "" {
		bad("Group is %q, must be the name of the consumer group", c.Group)
	}
	if len(c.Client) == 0 {
		bad("Client is empty, must name the brokers with kgo.SeedBrokers")
	} else if err := kgo.ValidateOpts(c.Client...); err != nil {
		// Without a group of its own, it also refuses callbacks and auto-commit.
		bad("Client has an option that is wrong or not to be set: %w", err)
	}
	if c.Workers < 1 {
		bad("Workers is %d, must be at least 1", c.Workers)
	}
	if c.BatchMax < 1 {
		bad("BatchMax is %d, must be at least 1", c.BatchMax)
	}
	if c.Window < 2 {
		bad("Window is %d, must be at least 2", c.Window)
	}
	if c.WindowBytes < 1 {
		bad("WindowBytes is %d, must be at least 1", c.WindowBytes)
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"BatchTime", c.BatchTime},
		{"CommitEvery", c.CommitEvery},
		{"DrainTimeout", c.DrainTimeout},
		{"RebalanceTimeout", c.RebalanceTimeout},
		{"SessionTimeout", c.SessionTimeout},
		{"HeartbeatInterval", c.HeartbeatInterval},
		{"RetryMin", c.RetryMin},
		{"ConnectTimeout", c.ConnectTimeout},
	} {
		if d.value <= 0 {
			bad("%s is %v, must be above 0", d.name, d.value)
		}
	}
	if c.RetryMax < c.RetryMin {
		bad("RetryMax is %v, must be at least RetryMin (%v)", c.RetryMax, c.RetryMin)
	}
	if c.SessionTimeout > 0 && c.HeartbeatInterval > c.SessionTimeout/3 {
		bad("HeartbeatInterval is %v, must be at most SessionTimeout/3 (%v)", c.HeartbeatInterval, c.SessionTimeout/3)
	}
	if most := c.RebalanceTimeout - c.HeartbeatInterval - revokeReserve; c.RebalanceTimeout > 0 && c.DrainTimeout > most {
		bad("DrainTimeout is %v, must be at most RebalanceTimeout - HeartbeatInterval - %v (%v)", c.DrainTimeout, revokeReserve, most)
	}
	return errors.Join(errs...)
}

func validateRoutes(routes []Route) error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if len(routes) == 0 {
		bad("no routes, there must be at least one")
	}
	seen := make(map[string]int)
	for i, r := range routes {
		if len(r.Topics) == 0 {
			bad("routes[%d].Topics is empty, must name the topics to consume", i)
		}
		for _, topic := range r.Topics {
			if strings.TrimSpace(topic) == "" {
				bad("routes[%d].Topics holds %q, must be the name of a topic", i, topic)
				continue
			}
			if j, twice := seen[topic]; twice {
				bad("topic %q is in routes[%d] and in routes[%d], must be in one, once", topic, j, i)
				continue
			}
			seen[topic] = i
		}
		if r.Identify == nil {
			bad("routes[%d].Identify is nil, must be a function", i)
		}
		if isNil(r.Handler) {
			bad("routes[%d].Handler is nil, must be a handler", i)
		}
	}
	return errors.Join(errs...)
}

// isNil also finds the nil function in an interface that is not nil.
func isNil(h middleware.Handler) bool {
	if h == nil {
		return true
	}
	v := reflect.ValueOf(h)
	return (v.Kind() == reflect.Func || v.Kind() == reflect.Pointer) && v.IsNil()
}
