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

// A consumer that is wrong in one way, and what is to be said of it. It gets what
// was polled, with all the records of it that it has not handled yet.
var wrong = map[string]struct {
	does func(ctx context.Context, cl *kgo.Client, handle func(*kgo.Record), polled []*kgo.Record)
	want string
}{
	"commits what it polled": {
		func(ctx context.Context, cl *kgo.Client, handle func(*kgo.Record), polled []*kgo.Record) {
			_ = cl.CommitRecords(ctx, polled...)
			for _, r := range polled {
				handle(r)
			}
		},
		"has no effect",
	},
	"marks what is done, so that the highest one wins": {
		func(ctx context.Context, cl *kgo.Client, handle func(*kgo.Record), polled []*kgo.Record) {
			var wg sync.WaitGroup
			for _, rs := range byKey(polled) {
				wg.Go(func() {
					for _, r := range rs {
						handle(r)
						_ = cl.CommitRecords(ctx, r)
					}
				})
			}
			wg.Wait()
		},
		"has no effect",
	},
	"takes its commits back": {
		func(ctx context.Context, cl *kgo.Client, handle func(*kgo.Record), polled []*kgo.Record) {
			for _, r := range polled {
				handle(r)
			}
			_ = cl.CommitRecords(ctx, polled...)
			_ = cl.CommitRecords(ctx, polled[0])
		},
		"takes partition",
	},
	"mixes up the records of a key": {
		func(_ context.Context, _ *kgo.Client, handle func(*kgo.Record), polled []*kgo.Record) {
			for _, r := range slices.Backward(polled) {
				handle(r)
			}
		},
		"its effect after",
	},
	"handles two records of a key at once": {
		func(_ context.Context, _ *kgo.Client, handle func(*kgo.Record), polled []*kgo.Record) {
			var wg sync.WaitGroup
			for _, r := range polled {
				wg.Go(func() { handle(r) })
			}
			wg.Wait()
		},
		"at once",
	},
	"commits nothing": {
		func(_ context.Context, _ *kgo.Client, handle func(*kgo.Record), polled []*kgo.Record) {
			for _, r := range polled {
				handle(r)
			}
		},
		"was committed up to",
	},
	"stops after the first records": {
		func(ctx context.Context, _ *kgo.Client, handle func(*kgo.Record), polled []*kgo.Record) {
			handle(polled[0])
			<-ctx.Done()
		},
		"had no effect",
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
			r, err := churn.Run(t.Context(), churn.Config{
				Records: 400, Keys: 40, Partitions: 2, Members: 1, Settle: 3 * time.Second,
			}, func(ctx context.Context, m churn.Member) error { return consume(ctx, m, tt.does) })
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Violations) == 0 || !strings.Contains(r.Violations[0], tt.want) {
				t.Errorf("violations = %q, want one that says %q", r.Violations, tt.want)
			}
		})
	}
}

func consume(ctx context.Context, m churn.Member, does func(context.Context, *kgo.Client, func(*kgo.Record), []*kgo.Record)) error {
	cl, err := kgo.NewClient(append(
		m.Client,
		kgo.ConsumerGroup(churn.Group), kgo.ConsumeTopics(churn.Topic), kgo.DisableAutoCommit(),
	)...)
	if err != nil {
		return err
	}
	defer cl.CloseAllowingRebalance()
	for {
		fetches := cl.PollRecords(ctx, 100)
		if ctx.Err() != nil {
			return nil
		}
		if rs := fetches.Records(); len(rs) > 0 {
			does(ctx, cl, func(r *kgo.Record) { handle(ctx, m, r) }, rs)
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
