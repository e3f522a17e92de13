package e2e

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/internal/devstack"
	"github.com/onceward/onceward/internal/devstack/devtest"
	"github.com/onceward/onceward/middleware"
	"github.com/onceward/onceward/reentrant"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// 2,000 records of 1,000 messages (each comes twice) for 250 orders go through
// consumer, lock and inbox, on a real Kafka broker: each takes effect once, in order
// for its order, and every offset is committed.
func TestChain_OnRealKafka(t *testing.T) {
	const messages, orders, partitions = 1000, 250, 6
	stack := devtest.Start(t, devstack.Config{Kafka: true, Apache: true, Private: true})
	db, rdb := devtest.Postgres(t), devtest.Redis(t)
	if err := inbox.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(t.Context(), "CREATE TABLE effect (seq bigserial, o int, n int)"); err != nil {
		t.Fatal(err)
	}
	topic := fmt.Sprintf("orders-%d", time.Now().UnixNano())
	client, err := kgo.NewClient(kgo.SeedBrokers(stack.Brokers()...), kgo.DefaultProduceTopic(topic))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	if _, err := admin.CreateTopic(t.Context(), partitions, 1, nil, topic); err != nil {
		t.Fatal(err)
	}
	var records []*kgo.Record
	for n := range messages {
		for range 2 {
			records = append(records, &kgo.Record{Key: fmt.Append(nil, n%orders), Value: fmt.Appendf(nil, "%d %d", n%orders, n)})
		}
	}
	if err := client.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
		t.Fatal(err)
	}

	quiet := slog.New(slog.DiscardHandler)
	locker, err := reentrant.New(rdb, reentrant.Config{Prefix: topic, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer locker.Close()
	box, err := inbox.New(db, inbox.Config{Consumer: "closer", Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	var decided atomic.Int64
	var outcomes [16]atomic.Int64
	all := make(chan struct{})
	h := middleware.Chain(
		middleware.Inbox(box, middleware.TxFunc(func(ctx context.Context, tx *sqlx.Tx, r *kgo.Record) error {
			var o, n int
			if _, err := fmt.Sscan(string(r.Value), &o, &n); err != nil {
				return middleware.Permanent(err)
			}
			_, err := tx.ExecContext(ctx, "INSERT INTO effect (o, n) VALUES ($1, $2)", o, n)
			return err
		})),
		middleware.Observe(func(e middleware.Event) {
			outcomes[e.Outcome].Add(1)
			if e.Class == middleware.Decided && decided.Add(1) == 2*messages {
				close(all)
			}
		}),
		middleware.Recover(),
		middleware.Lock(locker),
	)
	c, err := consumer.New(consumer.Config{
		Group:  topic,
		Client: []kgo.Opt{kgo.SeedBrokers(stack.Brokers()...)},
		Logger: quiet,
	}, consumer.Route{
		Topics: []string{topic},
		Identify: func(r *kgo.Record) (middleware.Identity, error) {
			return middleware.Identity{Key: "order:" + string(r.Key), ID: string(r.Value)}, nil
		},
		Handler: h,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	select {
	case <-all:
	case err := <-ended:
		t.Fatalf("the consumer ended: %v; decided %d of %d records", err, decided.Load(), 2*messages)
	}
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}

	if applied, duplicates := outcomes[inbox.Applied].Load(), outcomes[inbox.Duplicate].Load(); applied != messages || duplicates != messages {
		t.Errorf("applied %d and duplicates %d, want %d of each", applied, duplicates, messages)
	}
	var effects []struct{ O, N int }
	if err := db.SelectContext(t.Context(), &effects, "SELECT o, n FROM effect ORDER BY seq"); err != nil {
		t.Fatal(err)
	}
	if len(effects) != messages {
		t.Errorf("%d effects, want %d", len(effects), messages)
	}
	last := map[int]int{}
	for _, e := range effects {
		if before, ok := last[e.O]; ok && e.N <= before {
			t.Errorf("order %d: message %d took effect after %d", e.O, e.N, before)
		}
		last[e.O] = e.N
	}
	lag, err := admin.Lag(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	group := lag[topic]
	if got := group.Lag.Total(); got != 0 || group.Error() != nil {
		t.Errorf("lag = %d (%v), want 0: every offset committed", got, group.Error())
	}
	if keys := rdb.Keys(t.Context(), topic+":*:lock:*").Val(); len(keys) != 0 {
		t.Errorf("locks left: %v", keys)
	}
}
