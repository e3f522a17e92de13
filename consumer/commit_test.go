package consumer

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/middleware"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func nothing(context.Context, *middleware.Message) error { return nil }

func TestCommit_FailsAndIsTriedAgain(t *testing.T) {
	for name, tt := range map[string]struct {
		err   *kerr.Error
		level string
	}{
		"refused":        {kerr.UnknownServerError, "WARN"},
		"in rebalance":   {kerr.RebalanceInProgress, "INFO"},
		"answer is late": {kerr.RequestTimedOut, "WARN"}, // applied all the same
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 1, "t")
			produce(t, c, 0, "a")
			fault := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: tt.err, Count: 3})
			after := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Count: -1, Observe: true})
			var logs syncBuffer
			cfg := fast(c)
			cfg.Logger = slog.New(slog.NewTextHandler(&logs, nil))
			start(t, cfg, routeTo(nothing))
			if err := fault.Wait(t.Context(), 3); err != nil {
				t.Fatal(err)
			}
			if err := after.Wait(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			untilCommitted(t, c, 1)
			if want := "level=" + tt.level + ` msg="offsets not committed"`; !strings.Contains(logs.String(), want) {
				t.Errorf("log does not say %s:\n%s", want, logs.String())
			}
		})
	}
}

func TestCommit_ChecksEachPartition(t *testing.T) {
	c := newCluster(t, 2, "t")
	produce(t, c, 0, "a")
	produce(t, c, 1, "b")
	fault := c.Fault(kfake.Fault{
		Keys: []kmsg.Key{kmsg.OffsetCommit}, Topic: "t", Partitions: []int32{0},
		Err: kerr.UnknownServerError, Count: -1,
	})
	start(t, fast(c), routeTo(nothing))
	until(t, "the other partition to be committed", func() bool { return committed(c, 1) == 1 })
	if err := fault.Wait(t.Context(), 3); err != nil { // tried on, alone
		t.Fatal(err)
	}
	if got := committed(c, 0); got != -1 {
		t.Errorf("committed = %d, want nothing", got)
	}
	fault.Remove()
	untilCommitted(t, c, 1)
}

func TestCommit_WhatDidNotChangeIsNotCommittedAgain(t *testing.T) {
	c := newCluster(t, 2, "t")
	produce(t, c, 0, "a")
	s := start(t, fast(c), routeTo(nothing))
	untilCommitted(t, c, 1)
	until(t, "the answer to be seen", func() bool { return len(s.live().disp.offers(s.live().disp.current())) == 0 })
	again := c.Fault(kfake.Fault{
		Keys: []kmsg.Key{kmsg.OffsetCommit}, Topic: "t", Partitions: []int32{0}, Count: -1, Observe: true,
	})
	produce(t, c, 1, "b")
	until(t, "the other partition to be committed", func() bool { return committed(c, 1) == 1 })
	if n := again.Hits(); n != 0 {
		t.Errorf("commits of what had not changed = %d", n)
	}
}

func TestCommit_OneInTheWayIsNotWaitedForWithoutEnd(t *testing.T) {
	var logs syncBuffer
	s := newSession(t.Context(), Config{Logger: slog.New(slog.NewTextHandler(&logs, nil))}.withDefaults(), nil)
	s.committing <- struct{}{}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	s.commit(ctx, nil, false)
	if !strings.Contains(logs.String(), "another commit is in the way") {
		t.Errorf("log = %s", logs.String())
	}
}

func TestCommit_StripsWhatIsNotTheMembers(t *testing.T) {
	s := newSession(t.Context(), Config{Logger: slog.New(slog.DiscardHandler)}.withDefaults(), nil)
	s.disp.assign(map[string][]int32{"t": {0, 1}, "u": {0}}, "m1")
	byID := make(map[partID]offer)
	request := func(member string) *kmsg.OffsetCommitRequest {
		req := kmsg.NewPtrOffsetCommitRequest()
		req.MemberID = member
		for topic, nums := range map[string][]int32{"t": {0, 1}, "u": {0}} {
			rt := kmsg.NewOffsetCommitRequestTopic()
			rt.Topic = topic
			for _, num := range nums {
				rp := kmsg.NewOffsetCommitRequestTopicPartition()
				rp.Partition = num
				rt.Partitions = append(rt.Partitions, rp)
				byID[partID{topic, num}] = offer{part: s.disp.owner(topic, num)}
			}
			req.Topics = append(req.Topics, rt)
		}
		return req
	}
	req := request("m1")
	s.disp.disown(map[string][]int32{"t": {1}, "u": {0}}, lost)
	if err := s.strip(req, byID); err != nil {
		t.Fatal(err)
	}
	if len(req.Topics) != 1 || req.Topics[0].Topic != "t" || len(req.Topics[0].Partitions) != 1 || req.Topics[0].Partitions[0].Partition != 0 {
		t.Errorf("request = %+v, want t/0 alone", req.Topics)
	}
	if err := s.strip(request("m2"), byID); err == nil {
		t.Error("a commit under another member's ID goes out")
	}
}

func TestCommit_AnswersWithTopicIDs(t *testing.T) {
	id := [16]byte{1, 2, 3}
	req, resp := kmsg.NewPtrOffsetCommitRequest(), kmsg.NewPtrOffsetCommitResponse()
	req.Topics = []kmsg.OffsetCommitRequestTopic{{Topic: "t", TopicID: id}}
	resp.Topics = []kmsg.OffsetCommitResponseTopic{{TopicID: id, Partitions: []kmsg.OffsetCommitResponseTopicPartition{
		{Partition: 0}, {Partition: 1, ErrorCode: kerr.UnknownTopicID.Code},
	}}}
	byID := map[partID]offer{
		{"t", 0}: {part: newPart("t", 0, "m")},
		{"t", 1}: {part: newPart("t", 1, "m")},
	}
	done, err := confirmed(req, resp, byID)
	if len(done) != 1 || done[0].part.num != 0 {
		t.Errorf("confirmed = %+v, want t/0 alone", done)
	}
	if err == nil || !strings.Contains(err.Error(), "t/1") {
		t.Errorf("error = %v, want one that names t/1", err)
	}
}
