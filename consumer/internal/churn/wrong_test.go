package churn_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward/consumer/internal/churn"
	"github.com/onceward/onceward/middleware"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A poll is what a wrong consumer makes something of.
type poll struct {
	cl     *kgo.Client
	handle func(*kgo.Record) // until that succeeds
	polled []*kgo.Record
	ever   map[int32]*kgo.Record // last one by partition of this and all earlier polls
}

// Consumers that are wrong in one way each, and what is to be said of them.
var wrong = map[string]struct {
	does    func(ctx context.Context, p poll)
	want    string
	members int
}{
	"commits what it polled": {
		func(ctx context.Context, p poll) {
			_ = p.cl.CommitRecords(ctx, p.polled...)
			for _, r := range p.polled {
				p.handle(r)
			}
		},
		"has no effect",
		1,
	},
	"marks what is done, so that the highest one wins": {
		func(ctx context.Context, p poll) {
			var wg sync.WaitGroup
			for _, rs := range byKey(p.polled) {
				wg.Go(func() {
					for _, r := range rs {
						p.handle(r)
						_ = p.cl.CommitRecords(ctx, r)
					}
				})
			}
			wg.Wait()
		},
		"has no effect",
		1,
	},
	"commits what it does not own any more": {
		func(ctx context.Context, p poll) {
			for _, r := range p.polled {
				p.handle(r)
			}
			offsets := make(map[int32]kgo.EpochOffset)
			for num, r := range p.ever {
				offsets[num] = kgo.EpochOffset{Epoch: r.LeaderEpoch, Offset: r.Offset + 1}
			}
			p.cl.CommitOffsetsSync(ctx, map[string]map[int32]kgo.EpochOffset{churn.Topic: offsets}, nil)
		},
		"takes partition",
		3,
	},
	"mixes up the records of a key": {
		func(_ context.Context, p poll) {
			for _, r := range slices.Backward(p.polled) {
				p.handle(r)
			}
		},
		"its effect after",
		1,
	},
	"handles two records of a key at once": {
		func(_ context.Context, p poll) {
			var wg sync.WaitGroup
			for _, r := range p.polled {
				wg.Go(func() { p.handle(r) })
			}
			wg.Wait()
		},
		"at once",
		1,
	},
	"commits nothing": {
		func(_ context.Context, p poll) {
			for _, r := range p.polled {
				p.handle(r)
			}
		},
		"was committed up to",
		1,
	},
	"stops after the first records": {
		func(ctx context.Context, p poll) {
			p.handle(p.polled[0])
			<-ctx.Done()
		},
		"had no effect",
		1,
	},
}

func byKey(rs []*kgo.Record) map[string][]*kgo.Record {
	m := make(map[string][]*kgo.Record)
	for _, r := range rs {
		m[string(r.Key)] = append(m[string(r.Key)], r)
	}
	return m
}

// TestOracleFindsWrongConsumers shows that the oracle can say no: for each thing
// that it checks there is a consumer that does it wrong.
func TestOracleFindsWrongConsumers(t *testing.T) {
	for name, tt := range wrong {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := churn.Config{Records: 400, Keys: 40, Partitions: 2, Members: tt.members, Settle: 3 * time.Second}
			if tt.members > 1 {
				cfg.Records, cfg.Partitions, cfg.Undecided = 8000, 6, 1000 // never enough
			}
			r, err := churn.Run(t.Context(), cfg, func(ctx context.Context, m churn.Member) error {
				return consume(ctx, m, tt.does)
			})
			if err != nil {
				t.Fatal(err)
			}
			// One wrong may lead to others, in any order.
			if !slices.ContainsFunc(r.Violations, func(v string) bool { return strings.Contains(v, tt.want) }) {
				t.Errorf("violations = %q, want one that says %q", r.Violations, tt.want)
			}
		})
	}
}

func consume(ctx context.Context, m churn.Member, does func(context.Context, poll)) error {
	cl, err := kgo.NewClient(append(
		m.Client,
		kgo.ConsumerGroup(churn.Group), kgo.ConsumeTopics(churn.Topic), kgo.DisableAutoCommit(),
		kgo.HeartbeatInterval(50*time.Millisecond), kgo.SessionTimeout(time.Second),
	)...)
	if err != nil {
		return err
	}
	defer cl.CloseAllowingRebalance()
	ever := make(map[int32]*kgo.Record)
	for {
		fetches := cl.PollRecords(ctx, 10)
		if ctx.Err() != nil {
			return nil
		}
		polled := fetches.Records()
		for _, r := range polled {
			ever[r.Partition] = r
		}
		if len(polled) > 0 {
			does(ctx, poll{cl, func(r *kgo.Record) { handle(ctx, m, r) }, polled, ever})
		}
	}
}

// handle handles a record until that succeeds.
func handle(ctx context.Context, m churn.Member, r *kgo.Record) {
	try := func() (err error) {
		defer func() {
			if v := recover(); v != nil {
				err = fmt.Errorf("panic: %v", v)
			}
		}()
		msg, err := middleware.NewMessage(m.Identify, r)
		if err != nil {
			return err
		}
		return m.Handler.Handle(ctx, []*middleware.Message{msg})[0]
	}
	for try() != nil && ctx.Err() == nil {
	}
}
