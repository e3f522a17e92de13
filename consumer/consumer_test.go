package consumer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
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
