package demo

import (
	"context"
	"fmt"
	"strings"

	"github.com/onceward/onceward/examples/orders/service"
	"github.com/onceward/onceward/internal/devstack"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

func (w *world) openKafka(ctx context.Context) error {
	producer, err := newProducer(w.cfg.Brokers, "orders-demo-"+w.id)
	if err != nil {
		return err
	}
	w.producer = producer
	w.admin = kadm.NewClient(producer)
	w.defers(func() error { producer.Close(); return nil })
	topics := []string{w.cfg.Topic, w.cfg.RetryTopic}
	if w.shared(devstack.Kafka) {
		w.defers(func() error {
			ctx, cancel := cleanup()
			defer cancel()
			_, err := w.admin.DeleteTopics(ctx, topics...)
			if _, e := w.admin.DeleteGroups(ctx, w.cfg.Group); err == nil {
				err = e
			}
			if err != nil {
				return fmt.Errorf("delete topics %s: %w", strings.Join(topics, ", "), err)
			}
			return nil
		})
	}
	made, err := w.admin.CreateTopics(ctx, partitions, -1, nil, topics...)
	if err != nil {
		return err
	}
	return made.Error()
}

// newProducer returns a client that puts a record where its Partition says.
func newProducer(brokers []string, name string) (*kgo.Client, error) {
	return kgo.NewClient(
		kgo.SeedBrokers(brokers...),
		kgo.ClientID(name),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	)
}

// produce puts an event into a partition, and returns where it is.
func (w *world) produce(ctx context.Context, e service.Event, to topicPartition) (position, error) {
	r := e.Record()
	r.Topic, r.Partition = to.topic, to.partition
	r, err := w.producer.ProduceSync(ctx, r).First()
	if err != nil {
		return position{}, fmt.Errorf("produce %s: %w", e.ID(), err)
	}
	return position{r.Topic, r.Partition, r.Offset}, nil
}

type topicPartition struct {
	topic     string
	partition int32
}

// owners asks the group who owns which partitions, by name of the instance. Until it has
// settled with all instances, it returns nil.
func (w *world) owners(ctx context.Context) (map[string][]topicPartition, error) {
	groups, err := w.admin.DescribeGroups(ctx, w.cfg.Group)
	if err != nil {
		return nil, err
	}
	g := groups[w.cfg.Group]
	if g.Err != nil || g.State != "Stable" || len(g.Members) != len(w.instances) {
		return nil, nil
	}
	owners := map[string][]topicPartition{}
	n := 0
	for _, m := range g.Members {
		assigned, ok := m.Assigned.AsConsumer()
		if !ok {
			return nil, fmt.Errorf("assignment of member %s of group %s cannot be read", m.ClientID, g.Group)
		}
		for _, t := range assigned.Topics {
			for _, p := range t.Partitions {
				owners[m.ClientID] = append(owners[m.ClientID], topicPartition{t.Topic, p})
				n++
			}
		}
	}
	if n != 2*partitions { // between the two rebalances of the cooperative protocol
		return nil, nil
	}
	return owners, nil
}

// settled waits until all instances have joined the group and all partitions have owners.
func (w *world) settled(ctx context.Context) (owners map[string][]topicPartition, err error) {
	err = poll(ctx, fmt.Sprintf("group %s with %d members", w.cfg.Group, len(w.instances)), func(ctx context.Context) (bool, error) {
		owners, err = w.owners(ctx)
		return owners != nil, err
	})
	return owners, err
}

// lag returns how many records of both topics the group has not committed.
func (w *world) lag(ctx context.Context) (int64, error) {
	ends, err := w.admin.ListEndOffsets(ctx, w.cfg.Topic, w.cfg.RetryTopic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return 0, err
	}
	committed, err := w.admin.FetchOffsets(ctx, w.cfg.Group)
	if err != nil {
		return 0, err
	}
	var lag int64
	for topic, ps := range ends {
		for p, end := range ps {
			if at, ok := committed.Lookup(topic, p); ok && at.At > 0 {
				lag += end.Offset - at.At
			} else {
				lag += end.Offset
			}
		}
	}
	return lag, nil
}

// readTopics reads both topics from start to end.
func (w *world) readTopics(ctx context.Context) ([]logged, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, waitAtMost, fmt.Errorf("not read within %v", waitAtMost))
	defer cancel()
	ends, err := w.admin.ListEndOffsets(ctx, w.cfg.Topic, w.cfg.RetryTopic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("read topics: %w", err)
	}
	left := int64(0)
	from := map[string]map[int32]kgo.Offset{}
	for topic, ps := range ends {
		from[topic] = map[int32]kgo.Offset{}
		for p, end := range ps {
			from[topic][p] = kgo.NewOffset().AtStart()
			left += end.Offset
		}
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(w.cfg.Brokers...), kgo.ConsumePartitions(from))
	if err != nil {
		return nil, fmt.Errorf("read topics: %w", err)
	}
	defer client.Close()
	var records []logged
	for left > 0 {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			return nil, fmt.Errorf("read topics: %w", context.Cause(ctx))
		}
		if err := fetches.Err(); err != nil {
			return nil, fmt.Errorf("read topics: %w", err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if err != nil {
				return
			}
			left--
			var e service.Event
			if e, err = service.ParseEvent(r); err == nil {
				records = append(records, logged{positionOf(r), e.ID()})
			}
		})
		if err != nil {
			return nil, fmt.Errorf("read topics: %w", err)
		}
	}
	return records, nil
}
