package churn

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward/middleware"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Topic is what members consume.
const Topic = "churn"

// Group is what they are members of.
const Group = "churn"

// Config says how much there is to do.
type Config struct {
	Records    int    // that are produced
	Keys       int    // that they have
	Partitions int32  // of the topic
	Members    int    // at most at once
	Undecided  int    // revokes with undecided records that there must be
	InFlight   int    // revokes with work in flight that there must be
	Seed       uint64 // of all choices

	// Settle is how long the members may take, once all records are produced and
	// nobody joins or leaves any more, until everything is committed.
	Settle time.Duration
}

// A Member is what a consumer under test needs to know. It must call Handler
// with what Identify says of each record, and Revoked for each revoke.
type Member struct {
	Name     string
	Client   []kgo.Opt
	Identify middleware.Identify
	Handler  middleware.Handler
	Revoked  func(undecided, inflight int)
}

// A Start runs a consumer until ctx ends.
type Start func(ctx context.Context, m Member) error

// Report is what happened.
type Report struct {
	Effects    int      // first deliveries that took effect
	Again      int      // deliveries of a message after its first
	Joins      int      // of members
	Leaves     int      // of members
	Kicks      int      // members thrown out
	Undecided  int      // revokes with undecided records
	InFlight   int      // revokes with work in flight
	Commits    int      // requests that the broker got
	Violations []string // broken promises; the churn ends at the first
}

var errViolation = errors.New("a promise was broken")

// world is a churn under way.
type world struct {
	cfg     Config
	start   Start
	cluster *kfake.Cluster
	oracle  *oracle
	rnd     *rand.Rand // of the driver alone
	client  *kgo.Client
	members []*member
	named   int
	made    int // records produced
	numbers map[string]int

	gate    atomic.Pointer[chan struct{}] // handlers wait until it is closed
	round   atomic.Pointer[chan struct{}] // closed at the end of the round
	waiting chan struct{}                 // a handler waits at the gate
	caught  chan struct{}                 // a revoke had work in flight

	mu     sync.Mutex // guards report and failed
	report Report
	failed []error
}

type member struct {
	name   string
	cancel context.CancelFunc
	done   chan struct{}
}

// Run drives members that are started by start. The error says why the churn
// could not be carried out, and is nil if it was, whatever the report says.
func Run(ctx context.Context, cfg Config, start Start) (Report, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w := &world{
		cfg: cfg, start: start,
		rnd:     rand.New(rand.NewPCG(cfg.Seed, 0)),
		numbers: make(map[string]int),
		waiting: make(chan struct{}, 1),
		caught:  make(chan struct{}, 1),
	}
	w.openGate()
	w.nextRound()
	w.oracle = newOracle(func(v string) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.report.Violations = append(w.report.Violations, v)
		cancel(errViolation)
	})
	var err error
	w.cluster, err = kfake.NewCluster(
		kfake.NumBrokers(3), kfake.SeedTopics(cfg.Partitions, Topic),
		kfake.GroupMinSessionTimeout(100*time.Millisecond),
		kfake.BrokerConfigs(map[string]string{
			"group.consumer.heartbeat.interval.ms": "50",
			"group.consumer.session.timeout.ms":    "3000",
		}),
	)
	if err != nil {
		return Report{}, fmt.Errorf("start broker: %w", err)
	}
	defer w.cluster.Close()
	w.client, err = kgo.NewClient(kgo.SeedBrokers(w.cluster.ListenAddrs()...), kgo.DefaultProduceTopic(Topic))
	if err != nil {
		return Report{}, fmt.Errorf("producer: %w", err)
	}
	defer w.client.Close()
	commits := w.cluster.Fault(kfake.Fault{
		Keys: []kmsg.Key{kmsg.OffsetCommit}, Group: Group, Count: -1, Observe: true,
		When: func(r kmsg.Request) bool {
			w.oracle.commit(r.(*kmsg.OffsetCommitRequest))
			return true
		},
	})
	// The broker asks for faults of a topic only once it has accepted the member.
	w.cluster.Fault(kfake.Fault{
		Keys: []kmsg.Key{kmsg.OffsetCommit}, Topic: Topic, Count: -1, Observe: true,
		When: func(r kmsg.Request) bool {
			w.oracle.accept(r.(*kmsg.OffsetCommitRequest))
			return true
		},
	})

	err = w.drive(ctx)
	w.openGate()
	w.lastRound()
	for len(w.members) > 0 {
		w.leave(w.members[0])
	}
	if errors.Is(context.Cause(ctx), errViolation) {
		err = nil // it only stopped the driver
	}
	w.report.Commits = commits.Hits()
	w.report.Effects, w.report.Again = w.oracle.counts()
	return w.report, errors.Join(append(w.failed, err)...)
}

// drive makes rebalances until there were enough, and then waits for the end.
func (w *world) drive(ctx context.Context) error {
	chunk := max(w.cfg.Records/40, 1)
	for round := 0; !w.enough(); round++ {
		if w.made == w.cfg.Records {
			return fmt.Errorf("only %d revokes had undecided records and %d work in flight after %d rounds", w.report.Undecided, w.report.InFlight, round)
		}
		if err := w.rebalance(ctx, round, chunk); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
		w.nextRound()
	}
	w.lastRound()
	if len(w.members) == 0 {
		w.join(ctx)
	}
	if err := w.produce(ctx, w.cfg.Records); err != nil {
		return err
	}
	return w.settle(ctx)
}

func (w *world) enough() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.report.Undecided >= w.cfg.Undecided && w.report.InFlight >= w.cfg.InFlight
}

// produce writes up to n more records, numbered by key from 1.
func (w *world) produce(ctx context.Context, n int) error {
	n = min(n, w.cfg.Records-w.made)
	w.made += n
	var rs []*kgo.Record
	for range n {
		key := "k" + strconv.Itoa(w.rnd.IntN(w.cfg.Keys))
		w.numbers[key]++
		rs = append(rs, &kgo.Record{Key: []byte(key), Value: strconv.AppendInt(nil, int64(w.numbers[key]), 10)})
	}
	if err := w.client.ProduceSync(ctx, rs...).FirstErr(); err != nil {
		return fmt.Errorf("produce: %w", err)
	}
	return nil
}

// rebalance makes one under load, in every second round while all handlers are
// held at a gate, so that it meets work in flight.
func (w *world) rebalance(ctx context.Context, round, records int) error {
	gated := round%2 == 1
	if gated {
		w.closeGate()
		defer w.openGate()
	}
	if err := w.produce(ctx, records); err != nil {
		return err
	}
	if gated {
		select {
		case <-w.waiting:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	w.disturb(round)
	if err := w.change(ctx, round); err != nil {
		return err
	}
	stable := make(chan error, 1)
	watch, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { stable <- w.stable(watch) }()
	select {
	case <-w.caught:
		w.openGate()
		return <-stable
	case err := <-stable:
		return err
	}
}

// disturb makes some requests of the members fail.
func (w *world) disturb(round int) {
	switch round % 3 {
	case 0:
		errs := []*kerr.Error{kerr.UnknownServerError, kerr.RequestTimedOut, kerr.NotCoordinator, kerr.RebalanceInProgress}
		w.cluster.Fault(kfake.Fault{
			Keys: []kmsg.Key{kmsg.OffsetCommit}, Group: Group,
			Err: errs[w.rnd.IntN(len(errs))], Count: 1 + w.rnd.IntN(4),
		})
	case 1:
		w.cluster.RehashCoordinators()
	}
}

// change makes a member join, leave, or be thrown out.
func (w *world) change(ctx context.Context, round int) error {
	n := len(w.members)
	switch {
	case n == 0:
		w.join(ctx)
	case round%4 == 3:
		w.mu.Lock()
		w.report.Kicks++
		w.mu.Unlock()
		if round%8 == 7 { // it joins again under another ID
			w.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.JoinGroup}, Group: Group, Err: kerr.UnknownMemberID, When: func(r kmsg.Request) bool {
				return r.(*kmsg.JoinGroupRequest).MemberID != ""
			}})
		}
		kick := w.cluster.Fault(
			kfake.Fault{Keys: []kmsg.Key{kmsg.Heartbeat}, Group: Group, Err: kerr.UnknownMemberID},
			kfake.Fault{Keys: []kmsg.Key{kmsg.ConsumerGroupHeartbeat}, Group: Group, Err: kerr.FencedMemberEpoch, When: func(r kmsg.Request) bool {
				return r.(*kmsg.ConsumerGroupHeartbeatRequest).MemberEpoch > 0
			}},
		)
		defer kick.Remove()
		return kick.Wait(ctx, 1)
	case n == 1 || n < w.cfg.Members && w.rnd.IntN(2) == 0:
		w.join(ctx)
	default:
		w.leave(w.members[w.rnd.IntN(n)])
	}
	return nil
}

// stable waits until the members share all partitions.
func (w *world) stable(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, w.cfg.Settle)
	defer cancel()
	_, err := w.cluster.WaitGroupInfo(ctx, Group, func(g *kfake.GroupInfo) bool {
		return g != nil && g.State == "Stable" && len(g.Members) == len(w.members) && g.NumAssigned() == int(w.cfg.Partitions)
	})
	if err != nil {
		return fmt.Errorf("group not stable with %d members: %w", len(w.members), err)
	}
	return nil
}

// settle waits until all records took effect and all offsets are committed.
func (w *world) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, w.cfg.Settle)
	defer cancel()
	var left string
	_, err := w.cluster.WaitGroupInfo(ctx, Group, func(g *kfake.GroupInfo) bool {
		left = w.left(g)
		return left == ""
	})
	if err != nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		w.oracle.mu.Lock()
		defer w.oracle.mu.Unlock()
		w.oracle.violation("%s after %v without a rebalance", left, w.cfg.Settle)
	}
	return err
}

func (w *world) left(g *kfake.GroupInfo) string {
	if n, _ := w.oracle.counts(); n < w.cfg.Records {
		return fmt.Sprintf("%d of %d records had no effect", w.cfg.Records-n, w.cfg.Records)
	}
	for _, p := range w.cluster.PartitionInfos(Topic) {
		if got := g.Commits[Topic][p.Partition].Offset; got != p.HighWatermark {
			return fmt.Sprintf("partition %d was committed up to %d of %d", p.Partition, got, p.HighWatermark)
		}
	}
	return ""
}

func (w *world) join(ctx context.Context) {
	w.named++
	m := &member{name: "member " + strconv.Itoa(w.named), done: make(chan struct{})}
	// Members outlive the driver's context: they leave in order.
	ctx, m.cancel = context.WithCancel(context.WithoutCancel(ctx))
	w.members = append(w.members, m)
	w.mu.Lock()
	w.report.Joins++
	w.mu.Unlock()
	go func() {
		defer close(m.done)
		err := w.start(ctx, Member{
			Name: m.name,
			Client: []kgo.Opt{
				kgo.SeedBrokers(w.cluster.ListenAddrs()...),
				kgo.MetadataMinAge(50 * time.Millisecond), kgo.FetchMaxWait(200 * time.Millisecond),
				kgo.RetryBackoffFn(func(int) time.Duration { return 20 * time.Millisecond }),
			},
			Identify: identify,
			Handler:  w.handler(m.name),
			Revoked:  w.revoked,
		})
		if err != nil {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.failed = append(w.failed, fmt.Errorf("%s: %w", m.name, err))
		}
	}()
}

func (w *world) leave(m *member) {
	m.cancel()
	<-m.done
	for i := range w.members {
		if w.members[i] == m {
			w.members = append(w.members[:i], w.members[i+1:]...)
			break
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.report.Leaves++
}

func (w *world) revoked(undecided, inflight int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if undecided > 0 {
		w.report.Undecided++
	}
	if inflight > 0 {
		w.report.InFlight++
		select {
		case w.caught <- struct{}{}:
		default:
		}
	}
}
