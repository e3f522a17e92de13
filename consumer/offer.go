package consumer

import (
	"github.com/onceward/onceward/inbox"
	"github.com/twmb/franz-go/pkg/kgo"
)

// An offer is a position of a part that may be committed.
type offer struct {
	part *part
	at   kgo.EpochOffset
	run  inbox.Run // what is decided up to there and not marked; its topic is zero if that is not known
}

// offers returns what there is to commit of parts.
func (d *dispatcher) offers(parts []*part) (offers []offer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range parts {
		if p.state < lost && p.dirty() {
			offers = append(offers, offer{p, p.next, inbox.Run{Topic: p.topicID, Partition: p.num, From: p.unmarked, Upto: p.next.Offset}})
		}
	}
	return offers
}

// mayCommit reports whether a commit for p may still go out under a member ID.
func (d *dispatcher) mayCommit(p *part, member string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return p.state < lost && p.member == member
}

// committed notes what the group has confirmed.
func (d *dispatcher) committed(offers []offer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, o := range offers {
		o.part.committed = o.at
	}
}
