package consumer

import (
	"context"
	"errors"
	"fmt"

	"github.com/onceward/onceward/middleware"
	"github.com/twmb/franz-go/pkg/kgo"
)

// pollLoop enqueues what the client fetches until ctx ends, or there is an error
// that it makes no sense to go on with.
func (s *session) pollLoop(ctx context.Context) error {
	most := min(max(2*s.disp.low(), 100), s.cfg.Window) // a poll fills no window by itself
	for ctx.Err() == nil {
		s.disp.waitHungry(ctx)
		if err := s.poll(ctx, most); err != nil {
			return err
		}
	}
	return nil
}

// poll holds up rebalances only while it sorts records in: nothing here waits.
func (s *session) poll(ctx context.Context, most int) error {
	fetches := s.client.PollRecords(ctx, most)
	// Always: a poll without records holds up rebalances as well.
	defer s.client.AllowRebalance()
	if ctx.Err() != nil {
		return nil
	}
	var fatal error
	fetches.EachError(func(topic string, num int32, err error) {
		fatal = errors.Join(fatal, s.health.note(topic, num, err))
	})
	if fatal != nil {
		return fatal
	}
	fetches.EachTopic(func(t kgo.FetchTopic) {
		for _, f := range t.Partitions {
			if len(f.Records) > 0 {
				fatal = errors.Join(fatal, s.sort(t.Topic, t.TopicID, f.Partition, f.Records))
			}
		}
	})
	return fatal
}

// sort identifies the records of a partition and enqueues them.
func (s *session) sort(topic string, id [16]byte, num int32, records []*kgo.Record) error {
	p, r := s.disp.owner(topic, num), s.disp.byTopic[topic]
	if p == nil || r == nil {
		// Nobody would ever commit or redeliver these.
		return fmt.Errorf("records of %s/%d, which is not assigned", topic, num)
	}
	s.health.fetched(topic, num)
	s.disp.fetchedFrom(p, id)
	var errs []error
	items := make([]*item, len(records))
	block := make([]item, len(records)) // one allocation for all
	for i, rec := range records {
		it := &block[i]
		items[i] = it
		*it = item{part: p, route: r, offset: rec.Offset, epoch: rec.LeaderEpoch, bytes: sizeOf(rec)}
		if it.done = rec.Attrs.IsControl(); it.done {
			continue
		}
		m, err := middleware.NewMessage(r.Identify, rec)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		m.TopicID = id
		it.msg = m
	}
	unidentified, full := s.disp.enqueue(p, items)
	if full {
		s.flow(p)
	}
	if len(unidentified) > 0 {
		s.buried(s.disp.stopUnidentified(unidentified, errs))
	}
	return nil
}

func sizeOf(r *kgo.Record) int64 {
	n := len(r.Key) + len(r.Value)
	for _, h := range r.Headers {
		n += len(h.Key) + len(h.Value)
	}
	return int64(n)
}
