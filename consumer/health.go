package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	checkSick    = 2 * time.Second  // pause between two looks at topics while one is missing
	checkHealthy = 30 * time.Second // and while all are well
)

// health knows what is wrong with the group, the topics and the partitions.
type health struct {
	log *slog.Logger

	mu         sync.Mutex // guards all below
	group      error      // nil once joined
	topics     map[string]error
	partitions map[partID]error
}

func newHealth(log *slog.Logger) *health {
	return &health{
		log:        log,
		group:      errors.New("group not joined yet"),
		topics:     make(map[string]error),
		partitions: make(map[partID]error),
	}
}

func (h *health) joined() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.group = nil
}

func (h *health) left() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.group == nil {
		h.group = errors.New("membership of the group lost, joining again")
	}
}

// fetched notes that a partition gives records.
func (h *health) fetched(topic string, num int32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.partitions, partID{topic, num})
}

// forget drops what was wrong with partitions that are not ours any more.
func (h *health) forget(m map[string][]int32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for topic, nums := range m {
		for _, num := range nums {
			delete(h.partitions, partID{topic, num})
		}
	}
}

// note takes an error that came in place of records. It returns the error if
// nothing but another configuration can end it.
func (h *health) note(topic string, num int32, err error) error {
	var group *kgo.ErrGroupSession
	var loss *kgo.ErrDataLoss
	switch {
	case errors.Is(err, kgo.ErrClientClosed):
		return err
	case errors.As(err, &group):
		if hopeless(group.Err) {
			return err
		}
		h.mu.Lock()
		if h.group != nil { // else it has joined again before this was polled
			h.group = fmt.Errorf("group not joined: %w", group.Err)
		}
		h.mu.Unlock()
		h.log.Warn("group not joined, trying again", "error", group.Err)
	case errors.As(err, &loss):
		// Nothing that is left was skipped, and what comes again is a duplicate.
		h.log.Error("records lost by the cluster", "topic", topic, "partition", num, "error", err)
	case num < 0:
		h.setTopic(topic, err)
	default:
		h.mu.Lock()
		before := h.partitions[partID{topic, num}]
		h.partitions[partID{topic, num}] = err
		h.mu.Unlock()
		if before == nil || before.Error() != err.Error() {
			h.log.Error("partition cannot be fetched", "topic", topic, "partition", num, "error", err)
		}
	}
	return nil
}

// hopeless reports whether joining a group fails for a reason that trying again
// does not cure.
func hopeless(err error) bool {
	for _, e := range []error{
		kerr.GroupAuthorizationFailed, kerr.SaslAuthenticationFailed, kerr.ClusterAuthorizationFailed,
		kerr.InvalidGroupID, kerr.InconsistentGroupProtocol, kerr.InvalidSessionTimeout,
		kerr.FencedInstanceID, kerr.UnsupportedVersion, kerr.UnsupportedAssignor,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// setTopic notes what is wrong with a topic; nil means nothing.
func (h *health) setTopic(topic string, err error) {
	h.mu.Lock()
	before := h.topics[topic]
	if err == nil {
		delete(h.topics, topic)
	} else {
		h.topics[topic] = err
	}
	h.mu.Unlock()
	switch {
	case err == nil && before != nil:
		h.log.Info("topic is well again", "topic", topic)
	case err != nil && (before == nil || before.Error() != err.Error()):
		h.log.Error("topic cannot be consumed, trying again", "topic", topic, "error", err)
	}
}

// errs returns all that is wrong.
func (h *health) errs() (errs []error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.group != nil {
		errs = append(errs, h.group)
	}
	for topic, err := range h.topics {
		errs = append(errs, fmt.Errorf("topic %s: %w", topic, err))
	}
	for id, err := range h.partitions {
		errs = append(errs, fmt.Errorf("partition %s/%d: %w", id.topic, id.num, err))
	}
	return errs
}

// watchTopics looks now and then whether all topics exist and may be read, until
// ctx ends: the client itself waits in silence for a topic that is missing.
func (s *session) watchTopics(ctx context.Context) {
	for {
		pause := checkHealthy
		if !s.checkTopics(ctx) {
			pause = checkSick
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

func (s *session) checkTopics(ctx context.Context) (well bool) {
	req := kmsg.NewPtrMetadataRequest()
	for topic := range s.disp.byTopic {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = kmsg.StringPtr(topic)
		req.Topics = append(req.Topics, t)
	}
	resp, err := req.RequestWith(ctx, s.client)
	if err != nil {
		return false // the group will notice, too
	}
	well = true
	for _, t := range resp.Topics {
		if t.Topic == nil {
			continue
		}
		err := kerr.ErrorForCode(t.ErrorCode)
		s.health.setTopic(*t.Topic, err)
		well = well && err == nil
	}
	return well
}
