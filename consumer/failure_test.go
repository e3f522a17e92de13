package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward/middleware"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestRun_FailingMessageIsRetriedAndHoldsTheCommit(t *testing.T) {
	c := newCluster(t, 1, "t")
	produce(t, c, 0, "a=1", "b=1", "b=2")
	b2 := make(chan struct{})
	var attempts []int
	var highest atomic.Int64
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Count: -1, Observe: true, When: func(r kmsg.Request) bool {
		highest.Store(max(highest.Load(), r.(*kmsg.OffsetCommitRequest).Topics[0].Partitions[0].Offset))
		return true
	}})
	var early int64
	start(t, fast(c), routeTo(func(_ context.Context, m *middleware.Message) error {
		if m.Key == "b" && string(m.Record.Value) == "2" {
			close(b2)
		}
		if m.Key != "a" {
			return nil
		}
		attempts = append(attempts, m.Attempt)
		if m.Attempt < 4 {
			return errors.New("try again")
		}
		recv(t, b2, "the other key to go on")
		early = highest.Load()
		return nil
	}))
	untilCommitted(t, c, 3)
	if want := []int{1, 2, 3, 4}; !slices.Equal(attempts, want) {
		t.Errorf("attempts = %v, want %v", attempts, want)
	}
	if early != 0 {
		t.Errorf("offset %d was committed before the record at 0 was decided", early)
	}
}

func TestRun_RetryKeepsTheRecordAndGivesANewMessage(t *testing.T) {
	c := newCluster(t, 1, "t")
	produce(t, c, 0, "a=value")
	var ms []*middleware.Message
	start(t, fast(c), routeTo(func(_ context.Context, m *middleware.Message) error {
		ms = append(ms, m)
		if len(ms) < 3 {
			return errors.New("no")
		}
		return nil
	}))
	untilCommitted(t, c, 1)
	if ms[0] == ms[1] || ms[0].Attempt != 1 || ms[1].Attempt != 2 {
		t.Error("a handler that was not waited for would see its message change")
	}
	if &ms[0].Record.Value[0] == &ms[1].Record.Value[0] {
		t.Error("a record that stays keeps the whole fetch in memory")
	}
	if ms[1].Record != ms[2].Record {
		t.Error("record copied again")
	}
	if string(ms[2].Record.Value) != "value" || string(ms[2].Record.Key) != "a" || ms[2].ID != "a/value" {
		t.Errorf("third try got %+v of %+v", ms[2], ms[2].Record)
	}
}

func TestRun_RetryAfterIsWaitedFor(t *testing.T) {
	c := newCluster(t, 1, "t")
	produce(t, c, 0, "a")
	const wait = 300 * time.Millisecond // RetryMax is 10 ms
	var first, second time.Time
	start(t, fast(c), routeTo(func(_ context.Context, m *middleware.Message) error {
		if m.Attempt == 1 {
			first = time.Now()
			return middleware.RetryAfter(wait, errors.New("later"))
		}
		second = time.Now()
		return nil
	}))
	untilCommitted(t, c, 1)
	if got := second.Sub(first); got < wait {
		t.Errorf("tried again after %v, want at least %v", got, wait)
	}
}

// whole are the ways in which a handler can fail for a batch as a whole.
var whole = map[string]struct {
	fail func() []error
	want string
}{
	"panic":        {func() []error { panic("boom") }, "panic: boom"},
	"panic error":  {func() []error { panic(middleware.Permanent(errors.New("boom"))) }, "panic: boom"},
	"wrong number": {func() []error { return make([]error, 7) }, "returned 7 errors for"},
	"goexit":       {func() []error { runtime.Goexit(); return nil }, "ended its goroutine"},
}

func TestRun_BatchThatFailsAsAWholeIsRetriedOneByOne(t *testing.T) {
	for name, tt := range whole {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 1, "t")
			produce(t, c, 0, numbered(40)...)
			var logs syncBuffer
			cfg := fast(c)
			cfg.Logger = slog.New(slog.NewTextHandler(&logs, nil))
			cfg.Workers = 1
			var mu sync.Mutex
			sizes := make(map[int]bool) // of batches with the bad message
			attempts := 0               // of the bad message
			start(t, cfg, Route{Topics: []string{"t"}, Identify: byKey, Handler: middleware.HandlerFunc(func(_ context.Context, ms []*middleware.Message) []error {
				mu.Lock()
				defer mu.Unlock()
				for _, m := range ms {
					if m.Key == "k20" {
						sizes[len(ms)] = true
						if attempts++; attempts < 4 {
							return tt.fail()
						}
						if m.Attempt != attempts {
							t.Errorf("attempt = %d, want %d", m.Attempt, attempts)
						}
					}
				}
				return nil
			})})
			untilCommitted(t, c, 40)
			if !strings.Contains(logs.String(), tt.want) {
				t.Errorf("log does not say %q:\n%s", tt.want, logs.String())
			}
			if len(sizes) != 2 || !sizes[1] {
				t.Errorf("sizes of batches with the bad message = %v, want one above 1, and then 1", sizes)
			}
		})
	}
}

func TestRun_BusyIsNotAnAttempt(t *testing.T) {
	c := newCluster(t, 1, "t")
	produce(t, c, 0, "a")
	tries := 0
	start(t, fast(c), routeTo(func(_ context.Context, m *middleware.Message) error {
		if m.Attempt != 1 {
			t.Errorf("attempt = %d, want 1", m.Attempt)
		}
		tries++
		switch {
		case tries < 3:
			return middleware.Busy(time.Millisecond, errors.New("held"))
		case tries < 5:
			return fmt.Errorf("lost: %w", context.Canceled) // says no time
		}
		return nil
	}))
	untilCommitted(t, c, 1)
	if tries != 5 {
		t.Errorf("tries = %d, want 5", tries)
	}
}

func TestRun_SkippedIsDecided(t *testing.T) {
	c := newCluster(t, 1, "t")
	produce(t, c, 0, "a", "b")
	start(t, fast(c), routeTo(func(context.Context, *middleware.Message) error { return middleware.Skip("old") }))
	untilCommitted(t, c, 2)
}

func TestRun_FatalStopsItsLaneOnly(t *testing.T) {
	c := newCluster(t, 1, "t")
	produce(t, c, 0, "good=1", "bad=1", "bad=2", "good=2")
	var logs syncBuffer
	cfg := fast(c)
	cfg.Logger = slog.New(slog.NewTextHandler(&logs, nil))
	good2 := make(chan struct{})
	why := errors.New("amount is negative")
	var bad atomic.Int32
	s := start(t, cfg, routeTo(func(_ context.Context, m *middleware.Message) error {
		if m.Key == "bad" {
			bad.Add(1)
			return middleware.Permanent(why)
		}
		if string(m.Record.Value) == "2" {
			close(good2)
		}
		return nil
	}))
	recv(t, good2, "the other key to go on")
	err := s.untilReady("lane stopped")
	var e *MessageError
	if !errors.As(err, &e) || e.Topic != "t" || e.Partition != 0 || e.Offset != 1 || e.Key != "bad" || !errors.Is(err, why) {
		t.Errorf("Ready = %v (%+v)", err, e)
	}
	if n := strings.Count(logs.String(), "level=ERROR"); n != 1 {
		t.Errorf("errors logged = %d, want 1:\n%s", n, logs.String())
	}
	for _, want := range []string{"topic=t", "partition=0", "offset=1", "key=bad", "amount is negative"} {
		if !strings.Contains(logs.String(), want) {
			t.Errorf("log does not say %s:\n%s", want, logs.String())
		}
	}
	if err := s.stop(); err != nil {
		t.Errorf("Run = %v", err)
	}
	if got := committed(c, 0); got != 1 {
		t.Errorf("committed = %d, want 1, the offset of the stopped message", got)
	}
	if got := bad.Load(); got != 1 {
		t.Errorf("messages of the stopped lane that were handled = %d, want 1", got)
	}
}

func TestRun_RecordWithoutIdentityIsNeverSkipped(t *testing.T) {
	for name, identify := range map[string]middleware.Identify{
		"error": byKey,
		"panic": func(r *kgo.Record) (middleware.Identity, error) {
			if len(r.Key) == 0 {
				panic("nothing here")
			}
			return byKey(r)
		},
		"no ID": func(r *kgo.Record) (middleware.Identity, error) {
			return middleware.Identity{Key: "k" + string(r.Key), ID: string(r.Key)}, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 1, "t")
			produce(t, c, 0, "a", "=1", "=2", "b")
			handled := make(chan string, 10)
			s := start(t, fast(c), Route{Topics: []string{"t"}, Identify: identify, Handler: each(func(_ context.Context, m *middleware.Message) error {
				handled <- m.ID
				return nil
			})})
			recv(t, handled, "the record before")
			recv(t, handled, "the record after")
			untilCommitted(t, c, 1)
			err := s.untilReady("t/0 offset 2")
			var e *MessageError
			if !errors.As(err, &e) || e.Offset != 1 || e.Key != "" || middleware.Classify(err) != middleware.Fatal {
				t.Errorf("Ready = %v", err)
			}
			if err := s.stop(); err != nil {
				t.Errorf("Run = %v", err)
			}
			if got := committed(c, 0); got != 1 {
				t.Errorf("committed = %d, want 1", got)
			}
		})
	}
}

func TestRun_StopDrainsAndReturnsTheError(t *testing.T) {
	c := newCluster(t, 1, "t")
	produce(t, c, 0, "slow", "halt")
	why := errors.New("disk full")
	slow, halting := make(chan struct{}), make(chan struct{})
	s := start(t, fast(c), routeTo(func(ctx context.Context, m *middleware.Message) error {
		if m.Key == "halt" {
			recv(t, slow, "the slow one to start")
			close(halting)
			return middleware.Stop(why)
		}
		close(slow)
		recv(t, halting, "the other one to stop the consumer")
		return ctx.Err()
	}))
	err := s.wait()
	var e *MessageError
	if !errors.Is(err, why) || !errors.As(err, &e) || e.Key != "halt" {
		t.Errorf("Run = %v, want the handler's error and its message", err)
	}
	if got := committed(c, 0); got != 1 {
		t.Errorf("committed = %d, want 1: the slow message was decided, the other was not", got)
	}
}
