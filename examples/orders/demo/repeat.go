package demo

import (
	"context"
	"encoding/binary"
	"hash/fnv"

	"github.com/onceward/onceward/examples/orders/service"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/fx"
)

// A repeater is a producer that tells everything two or three times, on both topics. It
// takes the place of the service's own.
type repeater struct {
	cfg    childConfig
	client *kgo.Client
}

func (r *reporter) repeat(lc fx.Lifecycle, _ service.Publisher) (service.Publisher, error) {
	client, err := newProducer(r.cfg.Service.Brokers, r.cfg.Service.Name)
	if err != nil {
		return nil, err
	}
	lc.Append(fx.StopHook(client.Close))
	return &repeater{r.cfg, client}, nil
}

func (r *repeater) Publish(ctx context.Context, events []service.Event) error {
	var records []*kgo.Record
	for _, e := range events {
		for _, to := range copies(r.cfg.Seed, e, r.cfg.Partitions) {
			rec := e.Record()
			rec.Topic, rec.Partition = r.cfg.Service.Topic, to.partition
			if to.retry {
				rec.Topic = r.cfg.Service.RetryTopic
			}
			records = append(records, rec)
		}
	}
	return r.client.ProduceSync(ctx, records...).FirstErr()
}

// A target is where one copy of an event goes.
type target struct {
	retry     bool // to the retry topic
	partition int32
}

// copies returns where an event goes: once to each topic, and half of the events once
// more. The partitions are drawn, by the seed and not by the key, so that copies meet
// other instances. Whoever tells the event again tells it the same way.
func copies(seed uint64, e service.Event, partitions int32) []target {
	h := fnv.New64a()
	h.Write(binary.BigEndian.AppendUint64(nil, seed))
	h.Write([]byte(e.Kind))
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(e.Order)))
	draw := h.Sum64()
	next := func(n int32) int32 {
		v := int32(draw % uint64(n))
		draw /= uint64(n)
		return v
	}
	draw ^= draw >> 29 // FNV's low bits alone differ too little between neighbours
	to := []target{{false, next(partitions)}, {true, next(partitions)}}
	if next(2) == 1 {
		to = append(to, target{next(2) == 1, next(partitions)})
	}
	return to
}
