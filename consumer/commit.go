package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// errDisowned is the error of a commit of which nothing is this member's any more.
var errDisowned = errors.New("partitions are not this member's any more")

// commitLoop commits what was decided, until ctx ends.
func (s *session) commitLoop(ctx context.Context) {
	tick := time.NewTicker(s.cfg.CommitEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		// Not ended with ctx: the client would drop the connection, and the broker
		// could come to that commit after the last one.
		s.commit(s.base, s.disp.current(), false)
	}
}

// commit commits what was decided of parts, for the last time or not. What fails stays
// dirty, and goes with the next commit.
func (s *session) commit(ctx context.Context, parts []*part, last bool) {
	if !s.commitTurn(ctx) {
		return
	}
	defer func() { <-s.committing }()
	offers := s.disp.offers(parts)
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	if len(offers) == 0 {
		s.mark(ctx, nil, last)
		return
	}
	done, err := s.send(ctx, offers)
	s.disp.committed(done)
	s.mark(ctx, done, last)
	switch {
	case err == nil:
	case usual(err):
		s.log.Info("offsets not committed", "error", err)
	default:
		s.log.Warn("offsets not committed", "error", err)
	}
}

// commitTurn waits until no other commit is under way, so that none overtakes
// another.
func (s *session) commitTurn(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	select {
	case s.committing <- struct{}{}:
		return true
	case <-ctx.Done():
		s.log.Warn("offsets not committed", "error", fmt.Errorf("another commit is in the way: %w", context.Cause(ctx)))
		return false
	}
}

// usual reports whether err belongs to the life of a group: what is not committed
// now is committed by the next owner.
func usual(err error) bool {
	for _, e := range []error{errDisowned, kerr.RebalanceInProgress, kerr.IllegalGeneration, kerr.UnknownMemberID, kerr.StaleMemberEpoch, kerr.FencedMemberEpoch} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// send commits offers, and returns those that the group has confirmed.
func (s *session) send(ctx context.Context, offers []offer) (done []offer, err error) {
	offsets := make(map[string]map[int32]kgo.EpochOffset)
	byID := make(map[partID]offer, len(offers))
	for _, o := range offers {
		if offsets[o.part.topic] == nil {
			offsets[o.part.topic] = make(map[int32]kgo.EpochOffset)
		}
		offsets[o.part.topic][o.part.num] = o.at
		byID[partID{o.part.topic, o.part.num}] = o
	}
	// The client may hold a commit up (behind another, or a join) and send it
	// under a new member ID. A live member's commit is accepted by the broker for
	// partitions of others, too, and would rewind them. So who may commit is
	// asked when the request goes out.
	ctx = kgo.PreCommitFnContext(ctx, func(req *kmsg.OffsetCommitRequest) error {
		return s.strip(req, byID)
	})
	s.client.CommitOffsetsSync(ctx, offsets, func(_ *kgo.Client, req *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, e error) {
		if e != nil {
			err = e
			return
		}
		done, err = confirmed(req, resp, byID)
	})
	return done, err
}

// strip takes out of a commit what is not to be committed under its member ID.
func (s *session) strip(req *kmsg.OffsetCommitRequest, byID map[partID]offer) error {
	topics := req.Topics[:0:0]
	for _, t := range req.Topics {
		nums := t.Partitions[:0:0]
		for _, p := range t.Partitions {
			if s.disp.mayCommit(byID[partID{t.Topic, p.Partition}].part, req.MemberID) {
				nums = append(nums, p)
			}
		}
		if t.Partitions = nums; len(nums) > 0 {
			topics = append(topics, t)
		}
	}
	if req.Topics = topics; len(topics) == 0 {
		return errDisowned
	}
	return nil
}

// confirmed checks the answer for each partition.
func confirmed(req *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, byID map[partID]offer) (done []offer, err error) {
	names := make(map[[16]byte]string) // newer answers carry IDs in place of names
	for _, t := range req.Topics {
		names[t.TopicID] = t.Topic
	}
	var errs []error
	for _, t := range resp.Topics {
		topic := t.Topic
		if topic == "" {
			topic = names[t.TopicID]
		}
		for _, p := range t.Partitions {
			o, ok := byID[partID{topic, p.Partition}]
			switch err := kerr.ErrorForCode(p.ErrorCode); {
			case err != nil:
				errs = append(errs, fmt.Errorf("%s/%d: %w", topic, p.Partition, err))
			case ok:
				done = append(done, o)
			}
		}
	}
	return done, errors.Join(errs...)
}
