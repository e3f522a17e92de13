package consumer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward/middleware"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const group = "g"

// deadline bounds every wait of a test; none of them is expected to get near it.
const deadline = 30 * time.Second

// newCluster starts a broker in this process, with topics of the given number of
// partitions.
func newCluster(t testing.TB, partitions int32, topics ...string) *kfake.Cluster {
	t.Helper()
	c, err := kfake.NewCluster(
		kfake.NumBrokers(1), kfake.SeedTopics(partitions, topics...),
		kfake.GroupMinSessionTimeout(100*time.Millisecond),
		kfake.BrokerConfigs(map[string]string{"group.consumer.heartbeat.interval.ms": "100"}),
	)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// fast are settings under which nothing waits for long.
func fast(c *kfake.Cluster) Config {
	return Config{
		Group: group,
		Client: []kgo.Opt{
			kgo.SeedBrokers(c.ListenAddrs()...),
			kgo.FetchMaxWait(100 * time.Millisecond),
			kgo.MetadataMinAge(20 * time.Millisecond),
			kgo.RetryBackoffFn(func(int) time.Duration { return 10 * time.Millisecond }),
		},
		CommitEvery:       20 * time.Millisecond,
		HeartbeatInterval: 50 * time.Millisecond,
		SessionTimeout:    10 * time.Second,
		RetryMin:          time.Millisecond,
		RetryMax:          10 * time.Millisecond,
		Logger:            slog.New(slog.DiscardHandler),
		markEvery:         time.Millisecond,
	}
}

// byKey takes the record's key as the business key, and key and value as the ID.
func byKey(r *kgo.Record) (middleware.Identity, error) {
	if len(r.Key) == 0 {
		return middleware.Identity{}, errors.New("no key")
	}
	return middleware.Identity{Key: string(r.Key), ID: string(r.Key) + "/" + string(r.Value)}, nil
}

// route routes topic "t" to a handler of one message.
func routeTo(f func(ctx context.Context, m *middleware.Message) error) Route {
	return Route{Topics: []string{"t"}, Identify: byKey, Handler: each(f)}
}

// each handles the messages of a batch side by side.
func each(f func(ctx context.Context, m *middleware.Message) error) middleware.Handler {
	return middleware.HandlerFunc(func(ctx context.Context, ms []*middleware.Message) []error {
		errs := make([]error, len(ms))
		var wg sync.WaitGroup
		for i, m := range ms {
			wg.Go(func() { errs[i] = f(ctx, m) })
		}
		wg.Wait()
		return errs
	})
}

// produce writes records of topic "t", given as "key=value" or "key", to a partition.
func produce(t testing.TB, c *kfake.Cluster, partition int32, records ...string) {
	t.Helper()
	cl := producer(t, c)
	defer cl.Close()
	var rs []*kgo.Record
	for _, r := range records {
		rs = append(rs, record(partition, r))
	}
	if err := cl.ProduceSync(t.Context(), rs...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// produceSingly writes a record n times to partition 0, each in a batch of its own.
func produceSingly(t testing.TB, c *kfake.Cluster, n int, r string) {
	t.Helper()
	cl := producer(t, c)
	defer cl.Close()
	for range n {
		if err := cl.ProduceSync(t.Context(), record(0, r)).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
}

func producer(t testing.TB, c *kfake.Cluster) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	return cl
}

func record(partition int32, r string) *kgo.Record {
	key, value, _ := strings.Cut(r, "=")
	return &kgo.Record{Topic: "t", Partition: partition, Key: []byte(key), Value: []byte(value)}
}

// numbered returns n records of different keys.
func numbered(n int) (records []string) {
	for i := range n {
		records = append(records, "k"+strconv.Itoa(i))
	}
	return records
}

// A started consumer, with what its Run returned once it has.
type started struct {
	*Consumer
	t      testing.TB
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

func start(t testing.TB, cfg Config, routes ...Route) *started {
	t.Helper()
	c, err := New(cfg, routes...)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &started{Consumer: c, t: t, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		s.err = c.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-s.done
	})
	return s
}

// live returns the inside of a consumer that runs and has a client.
func (s *started) live() *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.session == nil || !isClosed(s.session.made) {
		return nil
	}
	return s.session
}

// wait waits for Run to return.
func (s *started) wait() error {
	s.t.Helper()
	recv(s.t, s.done, "Run to return")
	return s.err
}

// stop ends the context of Run and waits for it.
func (s *started) stop() error {
	s.t.Helper()
	s.cancel()
	return s.wait()
}

// untilReady waits until Ready returns an error that contains text, or nil for "".
func (s *started) untilReady(text string) error {
	s.t.Helper()
	var err error
	until(s.t, fmt.Sprintf("Ready to say %q", text), func() bool {
		err = s.Ready()
		return err == nil && text == "" || err != nil && text != "" && strings.Contains(err.Error(), text)
	})
	return err
}

// until waits for a condition that nothing announces.
func until(t testing.TB, what string, f func() bool) {
	t.Helper()
	timeout := time.After(deadline)
	for !f() {
		select {
		case <-timeout:
			t.Fatalf("waited %v for %s", deadline, what)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// recv waits for a value of ch.
func recv[T any](t testing.TB, ch <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(deadline):
		t.Fatalf("waited %v for %s", deadline, what)
		panic("unreachable")
	}
}

// committed returns the committed offset of a partition of topic "t", or -1.
func committed(c *kfake.Cluster, partition int32) int64 {
	info := c.GroupInfo(group)
	if info == nil {
		return -1
	}
	if commit, ok := info.Commits["t"][partition]; ok {
		return commit.Offset
	}
	return -1
}

// untilCommitted waits until an offset of partition 0 is committed.
func untilCommitted(t testing.TB, c *kfake.Cluster, want int64) {
	t.Helper()
	until(t, fmt.Sprintf("offset %d to be committed", want), func() bool { return committed(c, 0) == want })
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
