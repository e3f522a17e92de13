package middleware_test

import (
	"context"
	"fmt"
	"strings"

	"github.com/onceward/onceward/middleware"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Records lets any consumer use a handler and the middleware around it.
func ExampleRecords() {
	identify := func(r *kgo.Record) (middleware.Identity, error) {
		id := string(r.Value)
		if !strings.HasPrefix(id, "timeout:") {
			return middleware.Identity{}, fmt.Errorf("value is %q, must begin with timeout:", id)
		}
		return middleware.Identity{Key: "order:" + string(r.Key), ID: id}, nil
	}
	handle := middleware.Records(identify, middleware.Chain(
		middleware.RecordFunc(func(_ context.Context, r *kgo.Record) error {
			if string(r.Key) == "7" {
				return middleware.Skip("not overdue any more")
			}
			return nil
		}),
		middleware.Recover(),
	))

	records := []*kgo.Record{
		{Topic: "orders", Key: []byte("1"), Value: []byte("timeout:1")},
		{Topic: "orders", Key: []byte("7"), Value: []byte("timeout:7"), Offset: 1},
		{Topic: "orders", Key: []byte("8"), Value: []byte("garbage"), Offset: 2},
	}
	for i, err := range handle(context.Background(), records) {
		fmt.Printf("%s: %v (%v)\n", records[i].Value, middleware.Classify(err), err)
	}
	// Output:
	// timeout:1: decided (<nil>)
	// timeout:7: decided (skipped: not overdue any more)
	// garbage: fatal (identify record at orders/0 offset 2: value is "garbage", must begin with timeout:)
}
