package churn

import (
	"fmt"
	"strconv"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// An oracle sees effects and commits, and knows what must be true of them.
type oracle struct {
	broken func(violation string) // called under mu

	mu        sync.Mutex // guards all below
	effects   map[string]struct{}
	last      map[string]int      // number of the last effect by key
	parts     map[int32]*progress // by partition
	running   map[string]int      // handlers by member and key
	delivered map[string]int      // deliveries by message
	commits   map[int32]accepted  // last one by partition
	said      map[string]struct{} // violations
}

// progress is how far the effects of a partition are complete.
type progress struct {
	first int64 // offset without an effect
	above map[int64]struct{}
}

func newOracle(broken func(string)) *oracle {
	return &oracle{
		broken:    broken,
		effects:   make(map[string]struct{}),
		last:      make(map[string]int),
		parts:     make(map[int32]*progress),
		running:   make(map[string]int),
		delivered: make(map[string]int),
		commits:   make(map[int32]accepted),
		said:      make(map[string]struct{}),
	}
}

func (o *oracle) violation(format string, args ...any) {
	v := fmt.Sprintf(format, args...)
	if _, twice := o.said[v]; !twice {
		o.said[v] = struct{}{}
		o.broken(v)
	}
}

// enter notes that a handler got a message. It returns which delivery it is, from
// 1, and what to call when the handler is done.
func (o *oracle) enter(member, key, id string) (delivery int, leave func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.delivered[id]++
	lane := member + " " + key
	if o.running[lane]++; o.running[lane] > 1 {
		o.violation("%s has %d handlers of key %s at once", member, o.running[lane], key)
	}
	return o.delivered[id], func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.running[lane]--
	}
}

// apply is the effect of a message, if it is the first one.
func (o *oracle) apply(member, key, id string, r *kgo.Record) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, duplicate := o.effects[id]; duplicate {
		return
	}
	o.effects[id] = struct{}{}
	n, err := strconv.Atoi(string(r.Value))
	if err != nil || n != o.last[key]+1 {
		o.violation("%s gave message %q of key %s its effect after message %d", member, r.Value, key, o.last[key])
	}
	o.last[key] = n
	p := o.progress(r.Partition)
	p.above[r.Offset] = struct{}{}
	for {
		if _, next := p.above[p.first]; !next {
			return
		}
		delete(p.above, p.first)
		p.first++
	}
}

func (o *oracle) progress(partition int32) *progress {
	p := o.parts[partition]
	if p == nil {
		p = &progress{above: make(map[int64]struct{})}
		o.parts[partition] = p
	}
	return p
}

// commit looks at a commit that reached the broker, whether it will be accepted
// or not.
func (o *oracle) commit(req *kmsg.OffsetCommitRequest) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, t := range req.Topics {
		for _, p := range t.Partitions {
			if first := o.progress(p.Partition).first; p.Offset > first {
				o.violation("%s commits offset %d of partition %d, but %d has no effect", req.MemberID, p.Offset, p.Partition, first)
			}
		}
	}
}

// accepted is a commit that the broker carried out.
type accepted struct {
	member string
	offset int64
}

// accept looks at a commit that the broker carries out. A new owner starts at the
// last commit. So if a member commits less than another one did, one of the two
// did not own the partition any more. (Less than itself is fine: it got the
// partition again, and a commit of before was late.)
func (o *oracle) accept(req *kmsg.OffsetCommitRequest) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, t := range req.Topics {
		for _, p := range t.Partitions {
			if last := o.commits[p.Partition]; p.Offset < last.offset && req.MemberID != last.member {
				o.violation("%s takes partition %d back to offset %d from %d of %s", req.MemberID, p.Partition, p.Offset, last.offset, last.member)
			}
			o.commits[p.Partition] = accepted{req.MemberID, p.Offset}
		}
	}
}

// counts returns how many effects there are, and how many deliveries were more
// than one for each.
func (o *oracle) counts() (effects, again int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, n := range o.delivered {
		again += n - 1
	}
	return len(o.effects), again
}
