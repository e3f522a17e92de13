package consumer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward/middleware"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"
)

func TestRun_HandlesInOrderAndCommitsAll(t *testing.T) {
	c := newCluster(t, 1, "t")
	var want []string
	for i := range 50 {
		want = append(want, fmt.Sprintf("a=%d", i), fmt.Sprintf("b=%d", i))
	}
	produce(t, c, 0, want...)
	var mu sync.Mutex
	got := make(map[string][]string)
	s := start(t, fast(c), routeTo(func(_ context.Context, m *middleware.Message) error {
		mu.Lock()
		defer mu.Unlock()
		got[m.Key] = append(got[m.Key], m.Key+"="+string(m.Record.Value))
		return nil
	}))
	untilCommitted(t, c, 100)
	if err := s.Ready(); err != nil {
		t.Errorf("Ready = %v", err)
	}
	if err := s.stop(); err != nil {
		t.Errorf("Run = %v", err)
	}
	for i, r := range want {
		if key := r[:1]; got[key][i/2] != r {
			t.Errorf("record %d of %s = %s, want %s", i/2, key, got[key][i/2], r)
		}
	}
	if err := s.Ready(); !errors.Is(err, ErrNotRunning) {
		t.Errorf("Ready after Run = %v, want ErrNotRunning", err)
	}
	if n := len(c.GroupInfo(group).Members); n != 0 {
		t.Errorf("members after Run = %d, want 0", n)
	}
}

func TestRun_CommitsLeaderEpoch(t *testing.T) {
	c := newCluster(t, 1, "t")
	if _, _, err := c.AddNode(7, 0); err != nil {
		t.Fatal(err)
	}
	epoch := func() int32 { return c.PartitionInfo("t", 0).Epoch }
	for node := int32(7); epoch() < 2; node = 7 - node {
		if err := c.MoveTopicPartition("t", 0, node); err != nil {
			t.Fatal(err)
		}
	}
	produce(t, c, 0, "a")
	start(t, fast(c), routeTo(func(context.Context, *middleware.Message) error { return nil }))
	untilCommitted(t, c, 1)
	if got, want := c.GroupInfo(group).Commits["t"][0].LeaderEpoch, epoch(); got != want {
		t.Errorf("committed leader epoch = %d, want %d", got, want)
	}
}

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

func TestRun_HandlerInTheWayOfStopping(t *testing.T) {
	t.Run("obeys its context", func(t *testing.T) {
		c := newCluster(t, 1, "t")
		produce(t, c, 0, "a", "hangs", "b")
		cfg := fast(c)
		cfg.DrainTimeout = 50 * time.Millisecond
		hangs := make(chan struct{})
		var cause error
		s := start(t, cfg, routeTo(func(ctx context.Context, m *middleware.Message) error {
			if m.Key != "hangs" {
				return nil
			}
			close(hangs)
			<-ctx.Done()
			cause = context.Cause(ctx)
			return ctx.Err()
		}))
		recv(t, hangs, "the handler to hang")
		if err := s.stop(); err != nil {
			t.Errorf("Run = %v", err)
		}
		if !errors.Is(cause, ErrShutdown) {
			t.Errorf("cause = %v, want ErrShutdown", cause)
		}
		if got := committed(c, 0); got != 1 {
			t.Errorf("committed = %d, want 1", got)
		}
	})
	t.Run("ignores its context", func(t *testing.T) {
		c := newCluster(t, 1, "t")
		produce(t, c, 0, "a", "hangs")
		cfg := fast(c)
		cfg.DrainTimeout = 50 * time.Millisecond
		hangs, release := make(chan struct{}), make(chan struct{})
		s := start(t, cfg, routeTo(func(_ context.Context, m *middleware.Message) error {
			if m.Key == "hangs" {
				close(hangs)
				<-release
			}
			return nil
		}))
		recv(t, hangs, "the handler to hang")
		err := s.stop()
		if !errors.Is(err, ErrAbandoned) || !strings.Contains(err.Error(), `t/0 offset 1, key "hangs"`) {
			t.Errorf("Run = %v, want ErrAbandoned with the record", err)
		}
		close(release)
	})
}

func TestRun_ControlRecordsAreCommittedPast(t *testing.T) {
	c := newCluster(t, 1, "t")
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), kgo.TransactionalID("tx"))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	for _, end := range []kgo.TransactionEndTry{kgo.TryAbort, kgo.TryCommit} {
		if err := cl.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		r := &kgo.Record{Topic: "t", Key: []byte("k"), Value: fmt.Append(nil, bool(end))}
		if err := cl.ProduceSync(t.Context(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
		if err := cl.EndTransaction(t.Context(), end); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	s := start(t, fast(c), routeTo(func(_ context.Context, m *middleware.Message) error {
		got = append(got, string(m.Record.Value))
		return nil
	}))
	untilCommitted(t, c, 4) // two records, and two that end the transactions
	if err := s.stop(); err != nil {
		t.Errorf("Run = %v", err)
	}
	if want := []string{"true"}; !slices.Equal(got, want) {
		t.Errorf("handled = %v, want %v, the committed one", got, want)
	}
}

func TestRun_RoutesShareTheLaneOfAKey(t *testing.T) {
	c := newCluster(t, 1, "t", "u")
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	for i := range 50 {
		for _, topic := range []string{"t", "u"} {
			cl.Produce(t.Context(), &kgo.Record{Topic: topic, Key: []byte("k"), Value: fmt.Append(nil, i)}, nil)
		}
	}
	if err := cl.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	var inside, done atomic.Int32
	counts := make(map[string]int)
	all := make(chan struct{})
	handler := func(topic string) middleware.Handler {
		return each(func(_ context.Context, m *middleware.Message) error {
			if inside.Add(1) != 1 {
				t.Error("two handlers of one key at once")
			}
			defer inside.Add(-1)
			if m.Record.Topic != topic {
				t.Errorf("handler of %s got a record of %s", topic, m.Record.Topic)
			}
			counts[topic]++
			if done.Add(1) == 100 {
				close(all)
			}
			return nil
		})
	}
	start(
		t, fast(c),
		Route{Topics: []string{"t"}, Identify: byKey, Handler: handler("t")},
		Route{Topics: []string{"u"}, Identify: byKey, Handler: handler("u")},
	)
	recv(t, all, "all records")
}

func TestRun_WindowPausesAndResumes(t *testing.T) {
	for name, set := range map[string]func(*Config){
		"by count": func(c *Config) { c.Window = 10 },
		"by bytes": func(c *Config) { c.WindowBytes = 10 * int64(len("k00v")) },
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 2, "t")
			produceSingly(t, c, 300, "stuck=v") // a pause acts on the next fetch
			cfg := fast(c)
			cfg.BatchMax, cfg.Workers = 4, 2
			cfg.Client = append(cfg.Client, kgo.FetchMaxPartitionBytes(1))
			set(&cfg)
			release, other := make(chan struct{}), make(chan string, 2)
			s := start(t, cfg, routeTo(func(_ context.Context, m *middleware.Message) error {
				if m.Key != "stuck" {
					other <- m.Key
					return nil
				}
				<-release
				return nil
			}))
			fetched := func() (n int, paused bool) {
				live := s.live()
				if live == nil {
					return 0, false
				}
				d := live.disp
				d.mu.Lock()
				defer d.mu.Unlock()
				p := d.parts[partID{"t", 0}]
				if p == nil {
					return 0, false
				}
				return p.undecided, p.paused
			}
			until(t, "the partition to be paused", func() bool { _, paused := fetched(); return paused })
			produce(t, c, 1, "other")
			recv(t, other, "the other partition to go on")
			before, _ := fetched()
			produce(t, c, 1, "last")
			recv(t, other, "the other partition to go on")
			if after, _ := fetched(); before >= 300 || after != before {
				t.Errorf("undecided = %d and then %d, want a few, and no more while paused", before, after)
			}
			close(release)
			untilCommitted(t, c, 300)
		})
	}
}

func TestRun_NoBroker(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close() // nobody listens there
	cfg := Config{
		Group: group, Client: []kgo.Opt{kgo.SeedBrokers(addr, "localhost:1")},
		ConnectTimeout: 200 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	}
	s := start(t, cfg, routeTo(nil))
	err = s.wait()
	if err == nil || !strings.Contains(err.Error(), addr+", localhost:1") || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("Run = %v, want an error that names %s and what is wrong", err, addr)
	}
}

func TestRun_BrokerRefuses(t *testing.T) {
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.EnableSASL(), kfake.Superuser("PLAIN", "me", "secret"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	// The broker in this process just hangs up on a wrong password.
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.SASLAuthenticate}, Err: kerr.SaslAuthenticationFailed, Count: -1})
	cfg := fast(c)
	cfg.Client = append(cfg.Client, kgo.SASL(plain.Auth{User: "me", Pass: "secret"}.AsMechanism()))
	begin := time.Now()
	err = start(t, cfg, routeTo(nothing)).wait()
	if !errors.Is(err, kerr.SaslAuthenticationFailed) || !strings.Contains(err.Error(), c.ListenAddrs()[0]) {
		t.Errorf("Run = %v, want SASL_AUTHENTICATION_FAILED and the broker", err)
	}
	if got := time.Since(begin); got > 5*time.Second {
		t.Errorf("gave up after %v, want at once", got)
	}
}

func TestRun_ContextEndedBefore(t *testing.T) {
	c := newCluster(t, 1, "t")
	consumer, err := New(fast(c), routeTo(nil))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("a cause that is not context.Canceled"))
	if err := consumer.Run(ctx); err != nil {
		t.Errorf("Run = %v, want nil", err)
	}
}

func TestRun_ContextEndsWhileNoBrokerAnswers(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dialled := make(chan struct{})
	go func() {
		conn, err := l.Accept()
		if err == nil {
			defer conn.Close()
			close(dialled)
			_, _ = io.Copy(io.Discard, conn) // never answers
		}
	}()
	cfg := Config{Group: group, Client: []kgo.Opt{kgo.SeedBrokers(l.Addr().String())}, Logger: slog.New(slog.DiscardHandler)}
	s := start(t, cfg, routeTo(nil))
	recv(t, dialled, "the client to dial")
	if err := s.stop(); err != nil {
		t.Errorf("Run = %v, want nil", err)
	}
}

func TestRun_BrokerGoneWhenItStops(t *testing.T) {
	c := newCluster(t, 1, "t")
	produce(t, c, 0, "a")
	handled := make(chan struct{})
	cfg := fast(c)
	cfg.CommitEvery = time.Hour // there is something to commit at the end
	s := start(t, cfg, routeTo(func(context.Context, *middleware.Message) error {
		close(handled)
		return nil
	}))
	recv(t, handled, "the record to be handled")
	c.Close()
	begin := time.Now()
	if err := s.stop(); err != nil {
		t.Errorf("Run = %v, want nil: what is not committed comes again", err)
	}
	if got := time.Since(begin); got > 15*time.Second {
		t.Errorf("stopping took %v", got)
	}
}

func TestRun_StopsWhileAJoinIsNotAnswered(t *testing.T) {
	c := newCluster(t, 1, "t")
	joining := make(chan struct{}, 100)
	c.ControlKey(int16(kmsg.JoinGroup), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		joining <- struct{}{}
		return nil, nil, true // and never a word
	})
	s := start(t, fast(c), routeTo(nothing))
	recv(t, joining, "a join")
	begin := time.Now()
	if err := s.stop(); err != nil {
		t.Errorf("Run = %v", err)
	}
	if got := time.Since(begin); got > 2*leaveTimeout {
		t.Errorf("stopping took %v, want not much more than %v", got, leaveTimeout)
	}
}

func TestRun_OnceFromTenGoroutines(t *testing.T) {
	c := newCluster(t, 1, "t")
	consumer, err := New(fast(c), routeTo(nil))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	results := make(chan error, 10)
	for range 10 {
		go func() { results <- consumer.Run(ctx) }()
	}
	for range 9 {
		if err := recv(t, results, "a refused Run"); !errors.Is(err, ErrStarted) {
			t.Errorf("Run = %v, want ErrStarted", err)
		}
	}
	for range 10 {
		go func() { cancel(); _ = consumer.Ready() }()
	}
	if err := recv(t, results, "the one Run"); err != nil {
		t.Errorf("Run = %v", err)
	}
	if err := consumer.Run(t.Context()); !errors.Is(err, ErrStarted) {
		t.Errorf("Run again = %v, want ErrStarted", err)
	}
}

func TestRun_RefusesOptionsThatAreItsOwn(t *testing.T) {
	c := newCluster(t, 1, "t")
	for name, opt := range map[string]kgo.Opt{
		"ConsumerGroup":       kgo.ConsumerGroup("another"),
		"ConsumeTopics":       kgo.ConsumeTopics("u"),
		"ConsumeRegex":        kgo.ConsumeRegex(),
		"FetchIsolationLevel": kgo.FetchIsolationLevel(kgo.ReadUncommitted()),
		"RebalanceTimeout":    kgo.RebalanceTimeout(time.Minute + 1),
		"SessionTimeout":      kgo.SessionTimeout(time.Minute),
		"HeartbeatInterval":   kgo.HeartbeatInterval(time.Second),
		"WithContext":         kgo.WithContext(t.Context()),
	} {
		cfg := fast(c)
		cfg.Client = append(cfg.Client, opt)
		if err := start(t, cfg, routeTo(nil)).wait(); err == nil || !strings.Contains(err.Error(), "kgo."+name+" in Client") {
			t.Errorf("Run with %s = %v, want it refused", name, err)
		}
	}
}

func TestReady_MissingTopicIsReportedAndWaitedFor(t *testing.T) {
	c := newCluster(t, 1, "u")
	s := start(
		t, fast(c), routeTo(func(context.Context, *middleware.Message) error { return nil }),
		Route{Topics: []string{"u"}, Identify: byKey, Handler: each(nil)},
	)
	err := s.untilReady("topic t")
	if !errors.Is(err, kerr.UnknownTopicOrPartition) {
		t.Errorf("Ready = %v, want UNKNOWN_TOPIC_OR_PARTITION", err)
	}
	if err := c.CreateTopic("t", 1, nil); err != nil {
		t.Fatal(err)
	}
	produce(t, c, 0, "a")
	untilCommitted(t, c, 1)
	s.untilReady("")
}

func TestRun_GroupRefused(t *testing.T) {
	c := newCluster(t, 1, "t")
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.JoinGroup}, Err: kerr.GroupAuthorizationFailed, Count: -1})
	s := start(t, fast(c), routeTo(nil))
	if err := s.wait(); !errors.Is(err, kerr.GroupAuthorizationFailed) {
		t.Errorf("Run = %v, want GROUP_AUTHORIZATION_FAILED", err)
	}
}

func TestReady_GroupNotJoined(t *testing.T) {
	c := newCluster(t, 1, "t")
	fault := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.JoinGroup}, Err: kerr.GroupMaxSizeReached, Count: -1})
	s := start(t, fast(c), routeTo(nil))
	s.untilReady("GROUP_MAX_SIZE_REACHED")
	fault.Remove()
	s.untilReady("")
}

func TestReady_ThrownOut(t *testing.T) {
	c := newCluster(t, 1, "t")
	s := start(t, fast(c), routeTo(nothing))
	s.untilReady("")
	fault := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.JoinGroup}, Err: kerr.GroupMaxSizeReached, Count: -1})
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Heartbeat}, Err: kerr.UnknownMemberID})
	s.untilReady("GROUP_MAX_SIZE_REACHED")
	fault.Remove()
	s.untilReady("")
}

func TestReady_PartitionUnreadable(t *testing.T) {
	c := newCluster(t, 1, "t")
	produce(t, c, 0, "a")
	fault := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: "t", Err: kerr.TopicAuthorizationFailed, Count: -1})
	s := start(t, fast(c), routeTo(func(context.Context, *middleware.Message) error { return nil }))
	s.untilReady("TOPIC_AUTHORIZATION_FAILED")
	fault.Remove()
	untilCommitted(t, c, 1)
	s.untilReady("")
}

func TestHealth_GroupErrorThatIsPolledLate(t *testing.T) {
	h := newHealth(slog.New(slog.DiscardHandler))
	kicked := &kgo.ErrGroupSession{Err: kerr.UnknownMemberID}
	h.joined()
	h.left()
	if errs := h.errs(); len(errs) != 1 {
		t.Errorf("errors of a member that was thrown out = %v, want one", errs)
	}
	if err := h.note("", 0, kicked); err != nil {
		t.Errorf("gave up: %v", err)
	}
	if errs := h.errs(); len(errs) != 1 || !errors.Is(errs[0], kerr.UnknownMemberID) {
		t.Errorf("errors = %v, want the reason", errs)
	}
	h.joined()
	h.note("", 0, kicked)
	if errs := h.errs(); errs != nil {
		t.Errorf("errors of a member that has joined again = %v", errs)
	}
}

func TestHealth_LostRecordsPass(t *testing.T) {
	h := newHealth(slog.New(slog.DiscardHandler))
	h.joined()
	if err := h.note("t", 0, &kgo.ErrDataLoss{Topic: "t"}); err != nil || h.errs() != nil {
		t.Errorf("note = %v, errors = %v, want neither: nothing stands still", err, h.errs())
	}
}

func TestHealth_WhatIsRevokedIsForgotten(t *testing.T) {
	h := newHealth(slog.New(slog.DiscardHandler))
	h.joined()
	h.note("t", 1, &kgo.ErrDecompressTooLarge{Topic: "t", Partition: 1})
	if errs := h.errs(); len(errs) != 1 || !strings.Contains(errs[0].Error(), "partition t/1") {
		t.Errorf("errors = %v, want the partition", errs)
	}
	h.forget(map[string][]int32{"t": {1}})
	if errs := h.errs(); errs != nil {
		t.Errorf("errors = %v, want none", errs)
	}
}

// syncBuffer is a buffer for logs of several goroutines.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
