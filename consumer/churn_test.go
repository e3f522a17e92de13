package consumer_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/internal/churn"
	"github.com/twmb/franz-go/pkg/kgo"
)

// started runs our consumer as a member.
func ours(opts ...kgo.Opt) churn.Start {
	return func(ctx context.Context, m churn.Member) error {
		c, err := consumer.New(consumer.Config{
			Group:             churn.Group,
			Client:            append(m.Client, opts...),
			CommitEvery:       50 * time.Millisecond,
			DrainTimeout:      200 * time.Millisecond,
			RebalanceTimeout:  15 * time.Second,
			SessionTimeout:    3 * time.Second,
			HeartbeatInterval: 50 * time.Millisecond,
			RetryMin:          time.Millisecond,
			RetryMax:          50 * time.Millisecond,
			Logger:            slog.New(slog.DiscardHandler),
			Hooks: consumer.Hooks{Revoked: func(r consumer.Revoked) {
				m.Revoked(r.Undecided, r.InFlight)
			}},
		}, consumer.Route{Topics: []string{churn.Topic}, Identify: m.Identify, Handler: m.Handler})
		if err != nil {
			return err
		}
		if err := c.Run(ctx); !errors.Is(err, consumer.ErrAbandoned) { // some handlers are meant to outlive it
			return err
		}
		return nil
	}
}

func TestChurn(t *testing.T) {
	for name, tt := range map[string]struct {
		cfg  churn.Config
		opts []kgo.Opt
	}{
		"cooperative": {churn.Config{Records: 20000, Members: 4, Undecided: 30, InFlight: 5}, nil},
		"eager":       {churn.Config{Records: 3000, Members: 3, Undecided: 8, InFlight: 3}, []kgo.Opt{kgo.Balancers(kgo.StickyBalancer())}},
		"server side": {churn.Config{Records: 3000, Members: 3, Undecided: 8, InFlight: 3}, []kgo.Opt{kgo.ServerSideBalancer()}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := tt.cfg
			cfg.Keys, cfg.Partitions, cfg.Settle = 300, 8, time.Minute
			r, err := churn.Run(t.Context(), cfg, ours(tt.opts...))
			t.Logf("%+v", r)
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range r.Violations {
				t.Error(v)
			}
			if r.Effects != cfg.Records {
				t.Errorf("effects = %d, want %d", r.Effects, cfg.Records)
			}
			if r.Undecided < cfg.Undecided || r.InFlight < cfg.InFlight {
				t.Errorf("revokes with undecided records = %d and with work in flight = %d, want %d and %d or more", r.Undecided, r.InFlight, cfg.Undecided, cfg.InFlight)
			}
			if r.Again == 0 || r.Kicks == 0 {
				t.Error("nothing was delivered again, or nobody thrown out: too calm to show anything")
			}
		})
	}
}
