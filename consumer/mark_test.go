package consumer

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/middleware"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A notebook is a marker that takes notes. It refuses its first calls.
type notebook struct {
	mu      sync.Mutex
	refuse  int
	refused []inbox.Run
	runs    []inbox.Run
}

func (n *notebook) Mark(_ context.Context, runs []inbox.Run) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.refuse > 0 {
		n.refuse--
		n.refused = append(n.refused, runs...)
		return errors.New("no pencil")
	}
	n.runs = append(n.runs, runs...)
	return nil
}

func (n *notebook) all() []inbox.Run {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.runs)
}

// offsets returns how often each offset of a partition was marked.
func (n *notebook) offsets(partition int32) map[int64]int {
	m := make(map[int64]int)
	for _, r := range n.all() {
		for off := r.From; r.Partition == partition && off < r.Upto; off++ {
			m[off]++
		}
	}
	return m
}

// untilMarked waits until exactly the offsets from and up to but not including upto of a
// partition are marked, and looks that each is so once.
func (n *notebook) untilMarked(t *testing.T, partition int32, from, upto int64) {
	t.Helper()
	until(t, "offsets to be marked", func() bool { return len(n.offsets(partition)) >= int(upto-from) })
	got := n.offsets(partition)
	for off := from; off < upto; off++ {
		if got[off] != 1 {
			t.Errorf("offset %d of partition %d was marked %d times, want once", off, partition, got[off])
		}
	}
	if len(got) != int(upto-from) {
		t.Errorf("marked of partition %d: %v, want %d to %d", partition, got, from, upto-1)
	}
}

func marked(n *notebook, f func(context.Context, *middleware.Message) error) Route {
	r := routeTo(f)
	r.Marker = n
	return r
}

func TestMark_WhatIsCommitted(t *testing.T) {
	c := newCluster(t, 2, "t")
	id := c.TopicInfo("t").TopicID
	n := &notebook{}
	known := func(_ context.Context, m *middleware.Message) error {
		if m.TopicID != id {
			t.Errorf("TopicID of a message = %x, want %x", m.TopicID, id)
		}
		return nil
	}
	s := start(t, fast(c), marked(n, known))
	produce(t, c, 0, numbered(20)...)
	produce(t, c, 1, "x", "y")
	n.untilMarked(t, 0, 0, 20)
	n.untilMarked(t, 1, 0, 2)
	produce(t, c, 0, "later")
	n.untilMarked(t, 0, 0, 21)
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	// The next member goes on where this one ended.
	start(t, fast(c), marked(n, known))
	produce(t, c, 0, "last")
	n.untilMarked(t, 0, 0, 22)
	for _, r := range n.all() {
		if r.Topic != id {
			t.Errorf("run of topic %x, want %x", r.Topic, id)
		}
	}
}

// What lies before the start was decided by nobody that we know, and nor is what still
// is with a handler.
func TestMark_OnlyWhatThisMemberKnows(t *testing.T) {
	c := newCluster(t, 1, "t")
	produce(t, c, 0, numbered(5)...)
	cfg := fast(c)
	cfg.Client = append(cfg.Client, kgo.ConsumeStartOffset(kgo.NewOffset().AtEnd()))
	n := &notebook{}
	release := make(chan struct{})
	s := start(t, cfg, marked(n, func(ctx context.Context, m *middleware.Message) error {
		if m.Key == "slow" {
			select {
			case <-release:
			case <-ctx.Done():
			}
		}
		return nil
	}))
	if err := s.untilReady(""); err != nil {
		t.Fatal(err)
	}
	// Ready is said before the end is known; so wait for a record of after that.
	until(t, "the first offset to be marked", func() bool {
		produce(t, c, 0, "probe")
		return len(n.offsets(0)) > 0
	})
	first := n.all()[0].From
	if first < 5 {
		t.Errorf("marked from %d on, want from the end: 5 or more", first)
	}
	produce(t, c, 0, "slow")
	slow := c.PartitionInfo("t", 0).HighWatermark - 1
	produce(t, c, 0, "behind")
	n.untilMarked(t, 0, first, slow)
	close(release)
	n.untilMarked(t, 0, first, slow+2)
}

// A marker that fails does not hold up commits, and is told again.
func TestMark_FailsAndIsToldAgain(t *testing.T) {
	c := newCluster(t, 1, "t")
	var logs syncBuffer
	cfg := fast(c)
	cfg.Logger = slog.New(slog.NewTextHandler(&logs, nil))
	n := &notebook{refuse: 2}
	start(t, cfg, marked(n, nothing))
	produce(t, c, 0, "a")
	untilCommitted(t, c, 1)
	produce(t, c, 0, "b")
	untilCommitted(t, c, 2)
	until(t, "both to be refused", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return len(n.refused) == 2
	})
	produce(t, c, 0, "c")
	n.untilMarked(t, 0, 0, 3)
	if !strings.Contains(logs.String(), `msg="decided offsets not marked" topics=[t] error="no pencil"`) {
		t.Errorf("log = %s", logs.String())
	}
}

// Commits are more frequent than marks, but the last ones are marked before the partition
// goes.
func TestMark_NowAndThenAndAtTheEnd(t *testing.T) {
	c := newCluster(t, 1, "t")
	cfg := fast(c)
	cfg.markEvery = time.Hour
	n := &notebook{}
	s := start(t, cfg, marked(n, nothing))
	for i := range 3 {
		produce(t, c, 0, "a")
		untilCommitted(t, c, int64(i)+1)
	}
	if got := n.all(); len(got) != 0 {
		t.Errorf("marked = %v before it was time", got)
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	if got := n.all(); len(got) != 1 || got[0].From != 0 || got[0].Upto != 3 {
		t.Errorf("marked = %v, want one run from 0 to 3", got)
	}
}

// A marker that hangs is given up, so that commits go on.
func TestMark_Hangs(t *testing.T) {
	c := newCluster(t, 1, "t")
	r := routeTo(nothing)
	hung := make(chan error, 100)
	r.Marker = hangs(hung)
	start(t, fast(c), r)
	produce(t, c, 0, "a")
	untilCommitted(t, c, 1)
	if err := recv(t, hung, "the marker to be given up"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("given up with %v", err)
	}
	produce(t, c, 0, "b")
	untilCommitted(t, c, 2)
}

// hangs is a marker that says when its context has ended.
type hangs chan error

func (h hangs) Mark(ctx context.Context, _ []inbox.Run) error {
	<-ctx.Done()
	h <- ctx.Err()
	return ctx.Err()
}

// What the group has not confirmed may be handled by another member.
func TestMark_NothingThatIsNotCommitted(t *testing.T) {
	c := newCluster(t, 2, "t")
	produce(t, c, 0, "a")
	produce(t, c, 1, "b")
	fault := c.Fault(kfake.Fault{
		Keys: []kmsg.Key{kmsg.OffsetCommit}, Topic: "t", Partitions: []int32{0},
		Err: kerr.UnknownServerError, Count: -1,
	})
	n := &notebook{}
	start(t, fast(c), marked(n, nothing))
	n.untilMarked(t, 1, 0, 1)
	if err := fault.Wait(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	if got := n.offsets(0); len(got) > 0 {
		t.Errorf("marked = %v, want nothing", got)
	}
	fault.Remove()
	n.untilMarked(t, 0, 0, 1)
}

// The client is sent back when its offset is not in the log any more: a new run begins.
func TestPart_GoesBack(t *testing.T) {
	p := newPart("t", 0, "m")
	decide := func(offsets ...int64) {
		for _, off := range offsets {
			it := &item{part: p, offset: off}
			p.push(it)
			p.decide(it)
		}
	}
	decide(7, 8, 11)
	if p.unmarked != 7 || p.next.Offset != 12 {
		t.Errorf("after 7, 8 and 11: unmarked %d, next %d, want 7 and 12", p.unmarked, p.next.Offset)
	}
	decide(3, 4)
	if p.unmarked != 3 || p.next.Offset != 5 {
		t.Errorf("after going back to 3: unmarked %d, next %d, want 3 and 5", p.unmarked, p.next.Offset)
	}
	// An answer to what was marked before that says nothing about the new run.
	d := newDispatcher(t.Context(), Config{}.withDefaults(), nil)
	d.marked([]*part{p}, []inbox.Run{{From: 7, Upto: 12}})
	if p.unmarked != 3 {
		t.Errorf("unmarked = %d, want still 3", p.unmarked)
	}
}

// A reset to the end would skip records, which would then be marked.
func TestMark_WantsResetsToTheStart(t *testing.T) {
	c := newCluster(t, 1, "t")
	cfg := fast(c)
	cfg.Client = append(cfg.Client, kgo.ConsumeResetOffset(kgo.NewOffset().AtEnd()))
	err := start(t, cfg, marked(&notebook{}, nothing)).wait()
	if err == nil || !strings.Contains(err.Error(), "ConsumeResetOffset in Client must be at the start") {
		t.Errorf("Run = %v, want that it refuses", err)
	}
	s := start(t, cfg, routeTo(nothing))
	_ = s.untilReady("")
}
