package consumer

import (
	"context"
	"slices"
	"time"

	"github.com/onceward/onceward/inbox"
)

// A Marker writes down which offsets are decided, so that a message that Kafka delivers
// again is known by its offset, when nothing else is kept of it. [*inbox.Inbox] is one.
type Marker interface {
	// Mark is told of what was decided and committed since the last call that returned
	// nil: every 10 s, and when partitions are taken away. It runs on one goroutine at a
	// time, and its context ends after 1 s, since commits wait for it. An error is logged,
	// and the offsets are named again with the next ones.
	Mark(ctx context.Context, runs []inbox.Run) error
}

// Marks are for hours and days, and each changes a row that every claim of the partition
// reads: with one a second, a transaction that stays open for an hour would leave thousands
// of versions of the row in the way.
const (
	markEvery   = 10 * time.Second
	markTimeout = time.Second
)

// marks reports whether anybody wants to know what is decided.
func (s *session) marks() bool {
	return slices.ContainsFunc(s.disp.routes, func(r *route) bool { return r.Marker != nil })
}

// A marking is what is decided and committed, and not marked yet. Whoever has the turn to
// commit may use it.
type marking struct {
	runs map[*part]inbox.Run
	last time.Time
}

// mark notes offers that are committed, and tells the markers of the routes if it is
// time, or at once. Not before the commit: a mark that hangs must not keep it from the
// group. If the process dies in between, the offsets are a gap that nobody fills, and
// what is kept of their messages is kept longer.
func (s *session) mark(ctx context.Context, done []offer, atOnce bool) {
	for _, o := range done {
		if r := s.disp.byTopic[o.part.topic]; r.Marker != nil && o.run.Topic != ([16]byte{}) {
			s.marking.runs[o.part] = o.run
		}
	}
	if len(s.marking.runs) == 0 || !atOnce && time.Since(s.marking.last) < s.cfg.markEvery {
		return
	}
	s.marking.last = time.Now()
	ctx, cancel := context.WithTimeout(ctx, markTimeout)
	defer cancel()
	byRoute := make(map[*route][]*part)
	for p := range s.marking.runs {
		r := s.disp.byTopic[p.topic]
		byRoute[r] = append(byRoute[r], p)
	}
	for r, parts := range byRoute {
		runs := make([]inbox.Run, len(parts))
		for i, p := range parts {
			runs[i] = s.marking.runs[p]
		}
		if err := r.Marker.Mark(ctx, runs); err != nil {
			s.log.Warn("decided offsets not marked", "topics", r.Topics, "error", err)
			continue
		}
		s.disp.marked(parts, runs)
		for _, p := range parts {
			delete(s.marking.runs, p)
		}
	}
}

// fetchedFrom notes the ID of the topic that the records of p are from.
func (d *dispatcher) fetchedFrom(p *part, id [16]byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p.topicID = id
}

// marked notes what was marked of parts.
func (d *dispatcher) marked(parts []*part, runs []inbox.Run) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, p := range parts {
		if p.unmarked == runs[i].From { // else the client went back to other offsets meanwhile
			p.unmarked = runs[i].Upto
		}
	}
}
