package middleware_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/devstack/devtest"
	"github.com/onceward/onceward/middleware"
	"github.com/onceward/onceward/reentrant"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// identify takes "key:id" values apart: the order is the key, the whole the ID.
func identify(r *kgo.Record) (middleware.Identity, error) {
	key, _, _ := strings.Cut(string(r.Value), ":")
	return middleware.Identity{Key: key, ID: string(r.Value)}, nil
}

func record(value string) *kgo.Record { return &kgo.Record{Topic: "t", Value: []byte(value)} }

// messages makes one message per value, see identify.
func messages(t *testing.T, values ...string) []*middleware.Message {
	t.Helper()
	ms := make([]*middleware.Message, len(values))
	for i, v := range values {
		m, err := middleware.NewMessage(identify, record(v))
		if err != nil {
			t.Fatal(err)
		}
		ms[i] = m
	}
	return ms
}

// handle runs h and gives one error per message.
func handle(t *testing.T, h middleware.Handler, ms []*middleware.Message) []error {
	t.Helper()
	return middleware.Outcomes(h.Handle(t.Context(), ms), len(ms))
}

func newLocker(t *testing.T) (*reentrant.Locker, *redis.Client) {
	t.Helper()
	rdb := devtest.Redis(t)
	l, err := reentrant.New(rdb, reentrant.Config{
		Prefix: strings.ReplaceAll(t.Name(), "/", "-") + time.Now().Format("150405.000000"),
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l, rdb
}

// answer is a handler that answers each message by its value.
func answer(errs map[string]error) middleware.Handler {
	return middleware.RecordFunc(func(_ context.Context, r *kgo.Record) error { return errs[string(r.Value)] })
}
