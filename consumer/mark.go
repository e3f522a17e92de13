package consumer

import (
	"context"
	"slices"

	"github.com/onceward/onceward/inbox"
)

// A Marker writes down which offsets are decided, so that a message that Kafka delivers
// again is known by its offset, when nothing else is kept of it. [*inbox.Inbox] is one.
type Marker interface {
	// Mark is called on one goroutine at a time, after a commit, with what was decided
	// since the last call that returned nil. ctx ends with the time for the commit. An
	// error is logged, and the offsets are named again with the next ones.
	Mark(ctx context.Context, runs []inbox.Run) error
}

// marks reports whether anybody wants to know what is decided.
func (s *session) marks() bool {
	return slices.ContainsFunc(s.disp.routes, func(r *route) bool { return r.Marker != nil })
}

// mark tells the markers of the routes what was decided up to the offers, which are
// committed. Not before: a mark that hangs must not keep the commit from the group. If
// the process dies in between, the offsets are a gap that nobody fills, and what is
// kept of their messages is kept longer.
func (s *session) mark(ctx context.Context, done []offer) {
	byRoute := make(map[*route][]offer)
	for _, o := range done {
		r := s.disp.byTopic[o.part.topic]
		if r.Marker != nil && o.run.Topic != ([16]byte{}) {
			byRoute[r] = append(byRoute[r], o)
		}
	}
	for r, offers := range byRoute {
		runs := make([]inbox.Run, len(offers))
		for i, o := range offers {
			runs[i] = o.run
		}
		if err := r.Marker.Mark(ctx, runs); err != nil {
			s.log.Warn("decided offsets not marked", "topics", r.Topics, "error", err)
			continue
		}
		s.disp.marked(offers)
	}
}

// fetchedFrom notes the ID of the topic that the records of p are from.
func (d *dispatcher) fetchedFrom(p *part, id [16]byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p.topicID = id
}

// marked notes what was marked.
func (d *dispatcher) marked(offers []offer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, o := range offers {
		if o.part.unmarked == o.run.From { // else the client went back to other offsets meanwhile
			o.part.unmarked = o.run.Upto
		}
	}
}
