package consumer

import (
	"github.com/onceward/onceward/middleware"
	"github.com/twmb/franz-go/pkg/kgo"
)

// ownership says what may be done for a part. It only grows.
type ownership int

const (
	owned   ownership = iota // records are queued, handled and committed
	revoked                  // nothing starts; what is in flight may end and be committed
	lost                     // nothing is committed either
	gone                     // released; only handlers that were not waited for still know it
)

// A part is one assignment of one partition. Its identity is the pointer: when
// the partition comes back after a rebalance, that is another part.
//
// The dispatcher's mutex guards all fields but topic and num.
type part struct {
	topic string
	num   int32

	// member is the group member that may commit for it.
	member string

	state     ownership
	items     queue[*item] // from the first undecided one on, in order of arrival
	bytes     int64        // of items
	undecided int          // of items
	inflight  int          // of items, with a handler
	paused    bool         // items are above the window, or have not been below half of it since

	// next is what to commit: the epoch of the last record before items, and the
	// offset after it. It is compared with committed, never counted with, so gaps
	// in the log do not matter.
	next, committed kgo.EpochOffset

	// topicID is that of the records that were fetched, zero if brokers do not say it.
	topicID [16]byte

	// unmarked is the first offset that is decided and not marked yet, -1 if there is
	// none. What lies before the first record is not ours to know.
	unmarked int64

	// drained is made when the part is no longer owned, and closed when nothing
	// of it is in flight any more.
	drained chan struct{}
}

// An item is a record of a part on its way to a decision.
type item struct {
	part  *part
	route *route
	lane  *lane // nil for what needs no handling

	msg    *middleware.Message // of the next try; nil once decided, or if it could not be identified
	offset int64
	epoch  int32
	bytes  int64

	done     bool
	detached bool // msg does not share the memory of its fetch any more
	waits    int  // tries in a row that were not charged
}

// failed describes the item and what happened to it.
func (it *item) failed(err error) *MessageError {
	e := &MessageError{Topic: it.part.topic, Partition: it.part.num, Offset: it.offset, Err: err}
	if it.msg != nil {
		e.Key, e.Attempts = it.msg.Key, it.msg.Attempt
	}
	return e
}

// newPart returns a part of which nothing is to be committed yet.
func newPart(topic string, num int32, member string) *part {
	none := kgo.EpochOffset{Epoch: -1, Offset: -1}
	return &part{topic: topic, num: num, member: member, next: none, committed: none, unmarked: -1}
}

func (p *part) push(it *item) {
	p.items.push(it)
	p.bytes += it.bytes
	p.undecided++
}

// decide marks an item of p as decided, and moves next behind all decided ones
// that no undecided one precedes.
func (p *part) decide(it *item) {
	it.done = true
	it.msg = nil // let go of the record, though the item waits for its turn
	p.undecided--
	for p.items.len() > 0 && p.items.peek().done {
		it := p.items.pop()
		p.bytes -= it.bytes
		if p.unmarked < 0 || it.offset < p.next.Offset { // the first one, or the client went back
			p.unmarked = it.offset
		}
		p.next = kgo.EpochOffset{Epoch: it.epoch, Offset: it.offset + 1}
	}
}

// dirty reports whether there is something to commit.
func (p *part) dirty() bool { return p.next != p.committed }

// start counts an item that goes to a handler, end one that comes back.
func (p *part) start() { p.inflight++ }

func (p *part) end() {
	p.inflight--
	if p.inflight == 0 && p.drained != nil {
		close(p.drained)
	}
}

// disown makes sure that nothing new of p is started or fetched for it.
func (p *part) disown(to ownership) {
	if p.drained == nil {
		p.drained = make(chan struct{})
		if p.inflight == 0 {
			close(p.drained)
		}
	}
	p.state = max(p.state, to)
}

// full reports whether p has reached the given share of its window, in halves.
func (p *part) full(window int, bytes int64, halves int) bool {
	return 2*p.items.len() >= halves*window || 2*p.bytes >= int64(halves)*bytes
}
