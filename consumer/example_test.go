package consumer_test

import (
	"context"
	"fmt"
	"time"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/middleware"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

func Example() {
	// A broker in this process takes the place of a real one.
	kafka, err := kfake.NewCluster(kfake.SeedTopics(1, "orders.timeout"))
	if err != nil {
		panic(err)
	}
	defer kafka.Close()
	producer, err := kgo.NewClient(kgo.SeedBrokers(kafka.ListenAddrs()...))
	if err != nil {
		panic(err)
	}
	defer producer.Close()
	for _, event := range []string{"timeout-1", "timeout-2", "timeout-3"} {
		r := &kgo.Record{Topic: "orders.timeout", Key: []byte("1001"), Value: []byte(event)}
		if err := producer.ProduceSync(context.Background(), r).FirstErr(); err != nil {
			panic(err)
		}
	}

	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c, err := consumer.New(consumer.Config{
		Group:  "orders",
		Client: []kgo.Opt{kgo.SeedBrokers(kafka.ListenAddrs()...)},
	}, consumer.Route{
		Topics: []string{"orders.timeout"},
		Identify: func(r *kgo.Record) (middleware.Identity, error) {
			return middleware.Identity{Key: "order:" + string(r.Key), ID: string(r.Value)}, nil
		},
		Handler: middleware.RecordFunc(func(_ context.Context, r *kgo.Record) error {
			fmt.Printf("order %s: %s\n", r.Key, r.Value)
			if string(r.Value) == "timeout-3" {
				cancel()
			}
			return nil
		}),
	})
	if err != nil {
		panic(err)
	}
	fmt.Println("error:", c.Run(ctx))
	commit := kafka.GroupInfo("orders").Commits["orders.timeout"][0]
	fmt.Println("committed offset:", commit.Offset)
	// Output:
	// order 1001: timeout-1
	// order 1001: timeout-2
	// order 1001: timeout-3
	// error: <nil>
	// committed offset: 3
}
