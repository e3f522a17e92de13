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
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// A real broker, and an inbox whose rows are removed long before the topic forgets the
// records: a consumer that starts once more at offset 0 applies nothing twice. When the
// topic is made anew, its records are others, though their offsets are the same.
func TestMarks_OnRealKafka(t *testing.T) {
	const messages, partitions = 300, 3
	stack := devtest.Start(t, devstack.Config{Kafka: true, Apache: true, Private: true})
	db := devtest.Postgres(t)
	if err := inbox.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	exec := func(statement string) {
		t.Helper()
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	count := func(query string) (n int) {
		t.Helper()
		if err := db.GetContext(t.Context(), &n, query); err != nil {
			t.Fatal(err)
		}
		return n
	}
	exec("CREATE TABLE effect (id text)")
	topic := fmt.Sprintf("marked-%d", time.Now().UnixNano())
	client, err := kgo.NewClient(kgo.SeedBrokers(stack.Brokers()...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	quiet := slog.New(slog.DiscardHandler)
	box, err := inbox.New(db, inbox.Config{Consumer: "marked", Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}

	fill := func(prefix string) {
		t.Helper()
		if _, err := admin.CreateTopic(t.Context(), partitions, 1, nil, topic); err != nil {
			t.Fatal(err)
		}
		producer, err := kgo.NewClient(kgo.SeedBrokers(stack.Brokers()...), kgo.DefaultProduceTopic(topic), kgo.UnknownTopicRetries(-1))
		if err != nil {
			t.Fatal(err)
		}
		defer producer.Close()
		var records []*kgo.Record
		for n := range messages {
			records = append(records, &kgo.Record{Key: fmt.Append(nil, n), Value: fmt.Append(nil, prefix, n)})
		}
		if err := producer.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	// consume has a consumer decide all messages and commit them, and returns how many it
	// applied.
	consume := func(group string) (applied int64) {
		t.Helper()
		var decided, ran atomic.Int64
		all := make(chan struct{})
		h := middleware.Chain(
			middleware.Inbox(box, middleware.TxFunc(func(ctx context.Context, tx *sqlx.Tx, r *kgo.Record) error {
				_, err := tx.ExecContext(ctx, "INSERT INTO effect (id) VALUES ($1)", string(r.Value))
				return err
			})),
			middleware.Observe(func(e middleware.Event) {
				if e.Outcome == inbox.Applied {
					ran.Add(1)
				}
				if e.Class == middleware.Decided && decided.Add(1) == messages {
					close(all)
				}
			}),
		)
		c, err := consumer.New(consumer.Config{
			Group: group, Client: []kgo.Opt{kgo.SeedBrokers(stack.Brokers()...)}, Logger: quiet, CommitEvery: 100 * time.Millisecond,
		}, consumer.Route{
			Topics: []string{topic},
			Identify: func(r *kgo.Record) (middleware.Identity, error) {
				return middleware.Identity{Key: string(r.Key), ID: string(r.Value)}, nil
			},
			Handler: h,
			Marker:  box,
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
			t.Fatalf("the consumer ended: %v; decided %d of %d messages", err, decided.Load(), messages)
		}
		stop() // and commit, and mark
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		return ran.Load()
	}

	fill("first ")
	if applied := consume(topic); applied != messages {
		t.Fatalf("applied %d, want %d", applied, messages)
	}
	if n := count("SELECT coalesce(sum(next - first), 0) FROM inbox_mark"); n != messages {
		t.Fatalf("%d offsets are marked, want %d", n, messages)
	}

	// Four times an hour passes, far less than the retention of the topic, and each time
	// the purge walks through the table once from its beginning to its end.
	purge, stop := context.WithCancel(t.Context())
	defer stop()
	purged := make(chan error, 1)
	go func() {
		purged <- box.Purge(purge, inbox.PurgeConfig{Retention: 2 * time.Hour, TopicRetention: 7 * 24 * time.Hour, Marks: true, Every: time.Millisecond})
	}()
	walked := func() (began string) {
		if err := db.GetContext(t.Context(), &began, "SELECT coalesce(max(began)::text, '') FROM inbox_purge WHERE scope > 0"); err != nil {
			t.Fatal(err)
		}
		return began
	}
	for range 4 {
		exec("UPDATE inbox SET created_at = created_at - interval '61 minutes'")
		exec("UPDATE inbox_mark SET at = at - interval '61 minutes'")
		for range 2 { // the one that is under way may have passed
			before := walked()
			for deadline := time.Now().Add(time.Minute); walked() == before; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("the purge does not walk")
				}
			}
		}
	}
	for deadline := time.Now().Add(time.Minute); count("SELECT count(*) FROM inbox") > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d rows are left", count("SELECT count(*) FROM inbox"))
		}
	}
	stop()
	if err := <-purged; err != nil {
		t.Fatal(err)
	}

	if applied := consume(topic + "-again"); applied != 0 { // a new group, so from offset 0
		t.Errorf("applied %d again, want none", applied)
	}
	if n := count("SELECT count(*) FROM inbox"); n != 0 {
		t.Errorf("%d rows were made for what is marked", n)
	}

	if _, err := admin.DeleteTopic(t.Context(), topic); err != nil {
		t.Fatal(err)
	}
	fill("second ")
	if applied := consume(topic + "-anew"); applied != messages {
		t.Errorf("applied %d of the topic that was made anew, want %d", applied, messages)
	}
	if n, ids := count("SELECT count(*) FROM effect"), count("SELECT count(DISTINCT id) FROM effect"); n != 2*messages || ids != n {
		t.Errorf("%d effects of %d messages, want %d of as many", n, ids, 2*messages)
	}
}
