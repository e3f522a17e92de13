package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// newClient makes the group's client. Its rebalance callbacks are options of
// construction, which is why it is not taken from the application.
func (s *session) newClient(ctx context.Context) error {
	var topics []string
	for topic := range s.disp.byTopic {
		topics = append(topics, topic)
	}
	slices.Sort(topics)
	// Options that the application may set otherwise, its own, and those that it
	// may not. The last one of a kind wins.
	opts := []kgo.Opt{
		kgo.WithLogger(clientLog{s.log}),
		kgo.FetchMaxWait(500 * time.Millisecond), // what is resumed waits for the fetch that is under way
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	}
	fixed := []kgo.Opt{
		kgo.WithContext(ctx),
		kgo.ConsumerGroup(s.cfg.Group),
		kgo.ConsumeTopics(topics...),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(), // they take offsets, so that commits reach the end
		kgo.RebalanceTimeout(s.cfg.RebalanceTimeout),
		kgo.SessionTimeout(s.cfg.SessionTimeout),
		kgo.HeartbeatInterval(s.cfg.HeartbeatInterval),
	}
	opts = slices.Concat(opts, fixed, s.cfg.Client, []kgo.Opt{
		kgo.OnPartitionsAssigned(s.callback(s.assigned)),
		kgo.OnPartitionsRevoked(s.callback(s.revoked)),
		kgo.OnPartitionsLost(s.callback(s.lost)),
	})
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	s.client = cl
	close(s.made)
	var errs []error
	for _, o := range []struct {
		name string
		opt  any
		want any
	}{
		{"ConsumerGroup", kgo.ConsumerGroup, s.cfg.Group},
		{"ConsumeTopics", kgo.ConsumeTopics, topics},
		{"ConsumeRegex", kgo.ConsumeRegex, false},
		{"FetchIsolationLevel", kgo.FetchIsolationLevel, int8(1)}, // ReadCommitted
		{"RebalanceTimeout", kgo.RebalanceTimeout, s.cfg.RebalanceTimeout},
		{"SessionTimeout", kgo.SessionTimeout, s.cfg.SessionTimeout},
		{"HeartbeatInterval", kgo.HeartbeatInterval, s.cfg.HeartbeatInterval},
	} {
		if got := cl.OptValue(o.opt); !reflect.DeepEqual(got, o.want) {
			errs = append(errs, fmt.Errorf("kgo.%s in Client is %v, must be left to the consumer (%v)", o.name, got, o.want))
		}
	}
	if cl.OptValue(kgo.WithContext) != any(ctx) {
		errs = append(errs, errors.New("kgo.WithContext in Client must be left out: Run has a context"))
	}
	if start := kgo.NewOffset().AtStart(); s.marks() && !reflect.DeepEqual(cl.OptValue(kgo.ConsumeResetOffset), start) {
		errs = append(errs, errors.New("kgo.ConsumeResetOffset in Client must be at the start where a route has a Marker: else a reset skips records, which would be marked"))
	}
	if err := errors.Join(errs...); err != nil {
		cl.CloseAllowingRebalance()
		return err
	}
	return nil
}

// callback lets a rebalance callback wait for the client to be known: it may run
// before kgo.NewClient has returned.
func (s *session) callback(f func(m map[string][]int32)) func(context.Context, *kgo.Client, map[string][]int32) {
	return func(_ context.Context, _ *kgo.Client, m map[string][]int32) {
		<-s.made
		f(m)
	}
}

// connect waits until a broker answers, or ctx ends. A refusal is not waited on.
func (s *session) connect(ctx context.Context) error {
	timeout, cancel := context.WithTimeout(ctx, s.cfg.ConnectTimeout)
	defer cancel()
	wait := 50 * time.Millisecond
	for {
		err := s.client.Ping(timeout)
		if err == nil || ctx.Err() != nil {
			return nil
		}
		seeds, _ := s.client.OptValue(kgo.SeedBrokers).([]string)
		if refused := new(kerr.Error); errors.As(err, &refused) && !refused.Retriable {
			return fmt.Errorf("broker of %s refuses: %w", strings.Join(seeds, ", "), err)
		}
		pause := time.NewTimer(wait)
		select {
		case <-timeout.Done():
			pause.Stop()
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("no broker of %s answered within %v: %w", strings.Join(seeds, ", "), s.cfg.ConnectTimeout, err)
		case <-pause.C:
		}
		wait = min(2*wait, time.Second)
	}
}

// clientLog gives the client's warnings and errors to a slog.Logger.
type clientLog struct{ log *slog.Logger }

func (clientLog) Level() kgo.LogLevel { return kgo.LogLevelWarn }

func (l clientLog) Log(level kgo.LogLevel, msg string, args ...any) {
	at := slog.LevelWarn
	if level == kgo.LogLevelError {
		at = slog.LevelError
	}
	l.log.Log(context.Background(), at, "kafka client: "+msg, args...)
}
