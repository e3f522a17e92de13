package consumer

import "time"

// The three callbacks run one after another, and never while the poll loop is
// between a poll and its AllowRebalance. Empty maps are normal for all of them.

// assigned makes the parts that records are about to arrive for.
func (s *session) assigned(m map[string][]int32) {
	member, _ := s.client.GroupMetadata()
	s.disp.assign(m, member)
	s.resume(m) // a pause outlives an assignment
	s.health.joined()
	if len(m) > 0 {
		s.log.Info("partitions assigned", "partitions", m, "member", member)
	}
}

// revoked gives partitions back: nothing of them starts any more, what is in
// flight gets the drain timeout, what is decided is committed.
func (s *session) revoked(m map[string][]int32) {
	if len(m) > 0 {
		s.drain(m, ErrRevoked)
	}
}

// lost forgets partitions that are somebody else's already: whatever is in
// flight for them is a duplicate of the new owner's work.
func (s *session) lost(m map[string][]int32) {
	s.health.left()
	if len(m) == 0 {
		return
	}
	start := time.Now()
	parts, undecided, inflight := s.disp.disown(m, lost)
	s.disp.interrupt(parts, ErrRevoked)
	abandoned := s.disp.release(parts)
	s.resume(m)
	s.tell(Revoked{
		Partitions: m, Lost: true,
		Undecided: undecided, InFlight: inflight, Abandoned: abandoned,
		Took: time.Since(start),
	})
}

// drain disowns partitions within the drain timeout and commits what was decided.
func (s *session) drain(m map[string][]int32, cause error) {
	start := time.Now()
	parts, undecided, inflight := s.disp.disown(m, revoked)
	if !drained(parts, s.cfg.DrainTimeout) {
		s.disp.interrupt(parts, cause)
		drained(parts, cancelGrace)
	}
	// Not the context of Run or of the client's group: both may have ended, and
	// commit has a timeout of its own.
	s.commit(s.base, parts, true)
	abandoned := s.disp.release(parts)
	s.resume(m)
	if len(parts) == 0 { // drained before: the client also calls back when it leaves
		return
	}
	s.tell(Revoked{
		Partitions: m,
		Undecided:  undecided, InFlight: inflight, Abandoned: abandoned,
		Took: time.Since(start),
	})
}

// drained waits until nothing of the parts is in flight, at most for d.
func drained(parts []*part, d time.Duration) bool {
	timeout := time.NewTimer(d)
	defer timeout.Stop()
	for _, p := range parts {
		select {
		case <-p.drained:
		case <-timeout.C:
			return false
		}
	}
	return true
}

func (s *session) tell(r Revoked) {
	s.health.forget(r.Partitions)
	s.log.Info("partitions revoked", "partitions", r.Partitions, "lost", r.Lost,
		"undecided", r.Undecided, "in_flight", r.InFlight, "abandoned", r.Abandoned, "took", r.Took)
	if s.cfg.Hooks.Revoked != nil {
		s.cfg.Hooks.Revoked(r)
	}
}

// flow lets the client fetch parts or not, by what their windows say now. Calls
// are one after another, and the last one acts on the last state: so a pause
// that is decided while the workers make room cannot outlive that.
func (s *session) flow(parts ...*part) {
	if len(parts) == 0 {
		return
	}
	s.flowMu.Lock()
	defer s.flowMu.Unlock()
	for _, p := range parts {
		one := map[string][]int32{p.topic: {p.num}}
		if s.disp.pausedNow(p) {
			s.client.PauseFetchPartitions(one)
		} else {
			s.client.ResumeFetchPartitions(one)
		}
	}
}

// resume lets the client fetch partitions.
func (s *session) resume(m map[string][]int32) {
	s.flowMu.Lock()
	defer s.flowMu.Unlock()
	s.client.ResumeFetchPartitions(m)
}
