package reentrant_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/alicebob/miniredis/v2"
	"github.com/onceward/onceward/reentrant"
	"github.com/redis/go-redis/v9"
)

func Example() {
	server, err := miniredis.Run() // a Redis in memory; yours is a real one
	if err != nil {
		panic(err)
	}
	defer server.Close()
	server.ClockTTL(true)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()

	locker, err := reentrant.New(rdb, reentrant.Config{})
	if err != nil {
		panic(err)
	}
	defer locker.Close()

	ctx := context.Background()
	err = locker.Do(ctx, "order:1001", func(ctx context.Context) error {
		// A step that takes the same lock, as it does when it is called alone.
		return locker.Do(ctx, "order:1001", func(ctx context.Context) error {
			lease, _ := reentrant.FromContext(ctx, "order:1001")
			fmt.Println("held:", lease.Name(), "fenced:", lease.Fence() > 0)

			// Somebody else, who does not want to wait.
			_, err := locker.Acquire(context.Background(), "order:1001", reentrant.WaitAtMost(0))
			fmt.Println("busy:", errors.Is(err, reentrant.ErrBusy))
			return nil
		})
	})
	fmt.Println("done:", err)
	// Output:
	// held: order:1001 fenced: true
	// busy: true
	// done: <nil>
}
