package consumer

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/onceward/onceward/middleware"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestReady_MissingTopicIsReportedAndWaitedFor(t *testing.T) {
	c := newCluster(t, 1, "u")
	s := start(
		t, fast(c), routeTo(func(context.Context, *middleware.Message) error { return nil }),
		Route{Topics: []string{"u"}, Identify: byKey, Handler: each(nil)},
	)
	err := s.untilReady("topic t")
	if !errors.Is(err, kerr.UnknownTopicOrPartition) {
		t.Errorf("Ready = %v, want UNKNOWN_TOPIC_OR_PARTITION", err)
	}
	if err := c.CreateTopic("t", 1, nil); err != nil {
		t.Fatal(err)
	}
	produce(t, c, 0, "a")
	untilCommitted(t, c, 1)
	s.untilReady("")
}

func TestRun_GroupRefused(t *testing.T) {
	c := newCluster(t, 1, "t")
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.JoinGroup}, Err: kerr.GroupAuthorizationFailed, Count: -1})
	s := start(t, fast(c), routeTo(nil))
	if err := s.wait(); !errors.Is(err, kerr.GroupAuthorizationFailed) {
		t.Errorf("Run = %v, want GROUP_AUTHORIZATION_FAILED", err)
	}
}

func TestReady_GroupNotJoined(t *testing.T) {
	c := newCluster(t, 1, "t")
	fault := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.JoinGroup}, Err: kerr.GroupMaxSizeReached, Count: -1})
	s := start(t, fast(c), routeTo(nil))
	s.untilReady("GROUP_MAX_SIZE_REACHED")
	fault.Remove()
	s.untilReady("")
}

func TestReady_ThrownOut(t *testing.T) {
	c := newCluster(t, 1, "t")
	s := start(t, fast(c), routeTo(nothing))
	s.untilReady("")
	fault := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.JoinGroup}, Err: kerr.GroupMaxSizeReached, Count: -1})
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Heartbeat}, Err: kerr.UnknownMemberID})
	s.untilReady("GROUP_MAX_SIZE_REACHED")
	fault.Remove()
	s.untilReady("")
}

func TestReady_PartitionUnreadable(t *testing.T) {
	c := newCluster(t, 1, "t")
	produce(t, c, 0, "a")
	fault := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: "t", Err: kerr.TopicAuthorizationFailed, Count: -1})
	s := start(t, fast(c), routeTo(func(context.Context, *middleware.Message) error { return nil }))
	s.untilReady("TOPIC_AUTHORIZATION_FAILED")
	fault.Remove()
	untilCommitted(t, c, 1)
	s.untilReady("")
}

func TestHealth_GroupErrorThatIsPolledLate(t *testing.T) {
	h := newHealth(slog.New(slog.DiscardHandler))
	kicked := &kgo.ErrGroupSession{Err: kerr.UnknownMemberID}
	h.joined()
	h.left()
	if errs := h.errs(); len(errs) != 1 {
		t.Errorf("errors of a member that was thrown out = %v, want one", errs)
	}
	if err := h.note("", 0, kicked); err != nil {
		t.Errorf("gave up: %v", err)
	}
	if errs := h.errs(); len(errs) != 1 || !errors.Is(errs[0], kerr.UnknownMemberID) {
		t.Errorf("errors = %v, want the reason", errs)
	}
	h.joined()
	h.note("", 0, kicked)
	if errs := h.errs(); errs != nil {
		t.Errorf("errors of a member that has joined again = %v", errs)
	}
}

func TestHealth_LostRecordsPass(t *testing.T) {
	h := newHealth(slog.New(slog.DiscardHandler))
	h.joined()
	if err := h.note("t", 0, &kgo.ErrDataLoss{Topic: "t"}); err != nil || h.errs() != nil {
		t.Errorf("note = %v, errors = %v, want neither: nothing stands still", err, h.errs())
	}
}

func TestHealth_WhatIsRevokedIsForgotten(t *testing.T) {
	h := newHealth(slog.New(slog.DiscardHandler))
	h.joined()
	h.note("t", 1, &kgo.ErrDecompressTooLarge{Topic: "t", Partition: 1})
	if errs := h.errs(); len(errs) != 1 || !strings.Contains(errs[0].Error(), "partition t/1") {
		t.Errorf("errors = %v, want the partition", errs)
	}
	h.forget(map[string][]int32{"t": {1}})
	if errs := h.errs(); errs != nil {
		t.Errorf("errors = %v, want none", errs)
	}
}
