package consumer

import (
	"context"
	"log/slog"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward/middleware"
	"github.com/twmb/franz-go/pkg/kgo"
)

// What a record costs when its handler does nothing: fetch from a broker in this
// process, identify, lane, batch, commit. "raw" polls the same records and
// commits them, so the difference is ours.
func BenchmarkRecords(b *testing.B) {
	const records, partitions = 200_000, 8
	for _, bb := range []struct {
		name string
		keys int
		run  func(b *testing.B, cfg Config)
	}{
		{"raw", records, pollAndCommit},
		{"distinct keys", records, consumeAll},
		{"1000 keys", 1000, consumeAll},
		{"8 keys", 8, consumeAll},
	} {
		b.Run(bb.name, func(b *testing.B) {
			c := newCluster(b, partitions, "t")
			cl, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), kgo.DefaultProduceTopic("t"), kgo.MaxBufferedRecords(records))
			if err != nil {
				b.Fatal(err)
			}
			defer cl.Close()
			value := make([]byte, 150)
			for i := range records {
				cl.Produce(b.Context(), &kgo.Record{Key: []byte("key-" + strconv.Itoa(i%bb.keys)), Value: value}, nil)
			}
			if err := cl.Flush(b.Context()); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				n++
				cfg := Config{Group: group + strconv.Itoa(n), Client: []kgo.Opt{kgo.SeedBrokers(c.ListenAddrs()...)}, Logger: slog.New(slog.DiscardHandler)}
				bb.run(b, cfg)
			}
			b.ReportMetric(float64(n)*records/b.Elapsed().Seconds(), "records/s")
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n)/records, "ns/record")
		})
	}
}

func pollAndCommit(b *testing.B, cfg Config) {
	cl, err := kgo.NewClient(append(cfg.Client, kgo.FetchMaxWait(500*time.Millisecond), kgo.ConsumerGroup(cfg.Group), kgo.ConsumeTopics("t"), kgo.DisableAutoCommit())...)
	if err != nil {
		b.Fatal(err)
	}
	defer cl.Close()
	for n := 0; n < 200_000; {
		n += cl.PollRecords(b.Context(), 512).NumRecords()
	}
	if err := cl.CommitUncommittedOffsets(b.Context()); err != nil {
		b.Fatal(err)
	}
}

func consumeAll(b *testing.B, cfg Config) {
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	var n atomic.Int64
	c, err := New(cfg, Route{
		Topics: []string{"t"},
		Identify: func(r *kgo.Record) (middleware.Identity, error) {
			key := string(r.Key)
			return middleware.Identity{Key: key, ID: key}, nil
		},
		Handler: middleware.HandlerFunc(func(_ context.Context, ms []*middleware.Message) []error {
			if n.Add(int64(len(ms))) == 200_000 {
				cancel()
			}
			return nil
		}),
	})
	if err != nil {
		b.Fatal(err)
	}
	if err := c.Run(ctx); err != nil {
		b.Fatal(err)
	}
}
