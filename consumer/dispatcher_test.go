package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward/middleware"
	"github.com/twmb/franz-go/pkg/kgo"
)

// A desk is a dispatcher without Kafka and without workers.
type desk struct {
	*dispatcher
	t testing.TB
}

func newDesk(t testing.TB, set func(*Config)) *desk {
	t.Helper()
	cfg := Config{}.withDefaults()
	if set != nil {
		set(&cfg)
	}
	d := newDispatcher(t.Context(), cfg, []Route{{Topics: []string{"t"}}, {Topics: []string{"u"}}})
	d.assign(map[string][]int32{"t": {0, 1}, "u": {0}}, "m1")
	for _, r := range d.routes {
		r.pace = time.Nanosecond // batches are as large as they may be
	}
	return &desk{d, t}
}

// put enqueues a record for each key, at the given offsets.
func (d *desk) put(topic string, num int32, keyAt map[int64]string) []*item {
	d.t.Helper()
	p := d.owner(topic, num)
	var items []*item
	for _, at := range slices.Sorted(mapKeys(keyAt)) {
		key := keyAt[at]
		it := &item{part: p, route: d.byTopic[topic], offset: at, epoch: 3, bytes: 10}
		switch key {
		case "control":
			it.done = true
		case "": // not identified
		default:
			it.msg = &middleware.Message{
				Identity: middleware.Identity{Key: key, ID: fmt.Sprint(topic, num, at)}, Attempt: 1,
				Record: &kgo.Record{Topic: topic, Partition: num, Offset: at},
			}
		}
		items = append(items, it)
	}
	if dead, _ := d.enqueue(p, items); len(dead) > 0 {
		errs := make([]error, len(dead))
		for i := range errs {
			errs[i] = errors.New("no key")
		}
		d.stopUnidentified(dead, errs)
	}
	return items
}

// next takes a batch, which must be there.
func (d *desk) next() *batch {
	d.t.Helper()
	if d.readyLanes() == 0 {
		d.t.Fatal("nothing is ready")
	}
	return d.take()
}

func (d *desk) readyLanes() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ready
}

// done finishes a batch with one error for all of its items.
func (d *desk) done(b *batch, err error) (dead []*MessageError, resume []*part) {
	verdicts := make([]verdict, len(b.items))
	for i, it := range b.items {
		verdicts[i] = d.cfg.judge(it, err, false)
	}
	return d.finish(b, verdicts, time.Millisecond)
}

func mapKeys[K comparable, V any](m map[K]V) func(yield func(K) bool) {
	return func(yield func(K) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// at describes what a batch holds.
func at(b *batch) string {
	var s []string
	for _, it := range b.items {
		s = append(s, fmt.Sprintf("%s/%d@%d", it.part.topic, it.part.num, it.offset))
	}
	slices.Sort(s)
	return strings.Join(s, " ")
}

func (d *desk) wantBatch(want string) *batch {
	d.t.Helper()
	b := d.next()
	if got := at(b); got != want {
		d.t.Fatalf("batch = %s, want %s", got, want)
	}
	return b
}

func (d *desk) wantNothing() {
	d.t.Helper()
	if d.readyLanes() != 0 {
		d.t.Fatalf("ready = %s, want nothing", at(d.take()))
	}
}

func (d *desk) wantNext(p *part, want int64) {
	d.t.Helper()
	if got := p.next.Offset; got != want {
		d.t.Fatalf("next offset = %d, want %d", got, want)
	}
}

// wantEmpty checks that nothing is kept of what is over.
func (d *desk) wantEmpty() {
	d.t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.lanes)+len(d.stuck)+len(d.running)+d.ready != 0 {
		d.t.Errorf("kept %d lanes, %d stopped ones, %d batches, %d ready", len(d.lanes), len(d.stuck), len(d.running), d.ready)
	}
}

func TestPart_NextMovesBehindTheFirstUndecided(t *testing.T) {
	d := newDesk(t, nil)
	p := d.owner("t", 0)
	// Offsets have gaps where the log was compacted; 4 and 21 are control records.
	d.put("t", 0, map[int64]string{3: "a", 4: "control", 10: "b", 11: "c", 20: "d", 21: "control"})
	b := d.wantBatch("t/0@10 t/0@11 t/0@20 t/0@3")
	order := []int64{11, 3, 20, 10}
	want := []int64{-1, 5, 5, 22}
	for i, offset := range order {
		j := slices.IndexFunc(b.items, func(it *item) bool { return it.offset == offset })
		d.finish(&batch{route: b.route, items: b.items[j : j+1], cancel: b.cancel}, []verdict{{}}, time.Millisecond)
		d.wantNext(p, want[i])
	}
	if p.next.Epoch != 3 || p.bytes != 0 || p.undecided != 0 || p.inflight != 0 {
		t.Errorf("part = %+v, want epoch 3 and nothing left", p)
	}
}

func TestDispatcher_OneItemOfAKeyAtATime(t *testing.T) {
	d := newDesk(t, nil)
	d.put("t", 0, map[int64]string{0: "a", 1: "a", 2: "b"})
	d.put("t", 1, map[int64]string{0: "a"})
	b := d.wantBatch("t/0@0 t/0@2")
	d.wantNothing()
	d.done(b, nil)
	b = d.wantBatch("t/0@1")
	d.done(b, nil)
	b = d.wantBatch("t/1@0")
	d.done(b, nil)
	d.wantEmpty()
}

func TestDispatcher_BatchesAreOfOneRoute(t *testing.T) {
	d := newDesk(t, nil)
	d.put("t", 0, map[int64]string{0: "a", 1: "b"})
	d.put("u", 0, map[int64]string{0: "c", 1: "a"})
	first, second := d.next(), d.next()
	if got := []string{at(first), at(second)}; !slices.Contains(got, "t/0@0 t/0@1") || !slices.Contains(got, "u/0@0") {
		t.Errorf("batches = %v", got)
	}
	d.done(first, nil)
	d.done(second, nil)
	d.done(d.wantBatch("u/0@1"), nil)
	d.wantEmpty()
}

func TestRoute_Share(t *testing.T) {
	const target = 50 * time.Millisecond
	for _, tt := range []struct {
		pace              time.Duration
		ready, idle, want int
	}{
		{0, 100, 1, 1}, // nothing is known yet
		{time.Microsecond, 1, 4, 1},
		{time.Microsecond, 10, 4, 3},
		{time.Microsecond, 10, 1, 10},
		{time.Microsecond, 1000, 4, 64},     // BatchMax
		{10 * time.Millisecond, 1000, 1, 5}, // BatchTime
		{time.Second, 1000, 1, 1},
	} {
		r := &route{pace: tt.pace}
		if got := r.share(tt.ready, tt.idle, 64, target); got != tt.want {
			t.Errorf("share of %d ready for %d idle at %v each = %d, want %d", tt.ready, tt.idle, tt.pace, got, tt.want)
		}
	}
}

func TestDispatcher_SlowLaneRunsAlone(t *testing.T) {
	d := newDesk(t, nil)
	slow := func(b *batch) { d.finish(b, make([]verdict, len(b.items)), time.Second) }
	d.put("t", 0, map[int64]string{0: "slow", 1: "slow", 2: "slow"})
	slow(d.wantBatch("t/0@0"))
	if pace := d.routes[0].pace; pace > time.Millisecond {
		t.Errorf("pace = %v, but the slow lane says nothing of the others", pace)
	}
	d.put("t", 0, map[int64]string{3: "a", 4: "b"})
	first, second := d.next(), d.next()
	if got := []string{at(first), at(second)}; !slices.Contains(got, "t/0@1") || !slices.Contains(got, "t/0@3 t/0@4") {
		t.Errorf("batches = %v, want the slow lane alone", got)
	}
	d.done(first, nil)
	d.done(second, nil)
	d.put("t", 0, map[int64]string{5: "c"})
	d.done(d.wantBatch("t/0@2 t/0@5"), nil) // it was fast, so it may share again
	d.wantEmpty()
}

func TestRoute_PaceFollowsBothWays(t *testing.T) {
	r := &route{}
	b := &batch{route: r}
	for range 64 {
		b.items = append(b.items, &item{lane: &lane{}})
	}
	share := func() int { return r.share(1000, 1, 64, 50*time.Millisecond) }
	r.measure(b, 64*100*time.Millisecond, 50*time.Millisecond)
	if got := share(); got != 1 {
		t.Errorf("share after slow ones = %d, want 1", got)
	}
	b.items = b.items[:1]
	for range 30 {
		r.measure(b, time.Millisecond, 50*time.Millisecond)
	}
	if got := share(); got < 40 {
		t.Errorf("share after fast ones = %d, want 40 or more", got)
	}
}

func TestDispatcher_RevokeDropsWhatIsQueued(t *testing.T) {
	d := newDesk(t, nil)
	p := d.owner("t", 0)
	d.put("t", 0, map[int64]string{0: "a", 1: "b", 2: "c"})
	b := d.wantBatch("t/0@0 t/0@1 t/0@2")
	d.put("t", 0, map[int64]string{3: "a", 4: "d"})
	d.put("t", 1, map[int64]string{0: "a", 1: "d"})

	parts, undecided, inflight := d.disown(map[string][]int32{"t": {0}, "u": {}}, revoked)
	if len(parts) != 1 || undecided != 5 || inflight != 3 {
		t.Errorf("disown = %d parts, %d undecided, %d in flight, want 1, 5, 3", len(parts), undecided, inflight)
	}
	d.done(d.wantBatch("t/1@1"), nil) // and not t/0@4 before it
	if isClosed(p.drained) {
		t.Error("drained with three messages in flight")
	}
	d.finish(b, []verdict{{}, d.cfg.judge(b.items[1], errors.New("no"), false), d.cfg.judge(b.items[2], middleware.Permanent(errors.New("no")), false)}, 0)
	if !isClosed(p.drained) {
		t.Error("not drained with nothing in flight")
	}
	d.wantNext(p, 1) // what was decided counts, what failed is the next owner's
	if got := d.offers(parts); len(got) != 1 || got[0].at.Offset != 1 {
		t.Errorf("offers = %+v", got)
	}
	d.done(d.wantBatch("t/1@0"), nil)
	if abandoned := d.release(parts); abandoned != 0 {
		t.Errorf("abandoned = %d", abandoned)
	}
	d.wantEmpty()
	if d.owner("t", 0) != nil || d.owner("t", 1) == nil {
		t.Error("released the wrong part")
	}
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

func TestDispatcher_RecordThatComesBackWaitsForItsOldHandler(t *testing.T) {
	d := newDesk(t, nil)
	one := map[string][]int32{"t": {0}}
	d.put("t", 0, map[int64]string{0: "a", 1: "a"})
	old := d.wantBatch("t/0@0")
	parts, _, _ := d.disown(one, revoked)
	if abandoned := d.release(parts); abandoned != 1 {
		t.Errorf("abandoned = %d, want 1", abandoned)
	}
	d.assign(one, "m1")
	d.put("t", 0, map[int64]string{0: "a", 1: "a"})
	d.wantNothing()
	d.done(old, nil)
	p := d.owner("t", 0)
	d.wantNext(p, -1) // what the old part decided is not the new one's
	d.done(d.wantBatch("t/0@0"), nil)
	d.wantNext(p, 1)
	d.done(d.wantBatch("t/0@1"), nil)
	d.wantEmpty()
}

func TestDispatcher_AssignedOnceMoreStartsAnew(t *testing.T) {
	d := newDesk(t, nil)
	old := d.owner("t", 0)
	d.put("t", 0, map[int64]string{0: "a", 1: "b"})
	d.assign(map[string][]int32{"t": {0}}, "m1")
	if d.owner("t", 0) == old || d.mayCommit(old, "m1") {
		t.Error("the old part is still in use")
	}
	d.wantNothing()
	d.put("t", 0, map[int64]string{0: "a", 1: "b"})
	d.done(d.wantBatch("t/0@0 t/0@1"), nil)
	d.wantNext(d.owner("t", 0), 2)
	d.wantEmpty()
}

func TestDispatcher_RevokeFreesLanesBehindItsItems(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, nil)
		d.put("t", 0, map[int64]string{0: "parked", 1: "stopped", 2: "", 3: "only here"})
		b := d.next()
		d.finish(b, []verdict{
			d.cfg.judge(b.items[0], errors.New("no"), false),
			d.cfg.judge(b.items[1], middleware.Permanent(errors.New("no")), false),
			d.cfg.judge(b.items[2], middleware.Permanent(errors.New("no")), false),
		}, 0)
		d.put("u", 0, map[int64]string{0: "parked", 1: "stopped"})
		if n := len(d.stoppedLanes()); n != 3 {
			t.Errorf("stopped lanes = %d, want 3", n)
		}
		d.wantNothing()
		parts, _, _ := d.disown(map[string][]int32{"t": {0}}, revoked)
		d.release(parts)
		b = d.wantBatch("u/0@0 u/0@1") // the heads belong to another route now
		if n := len(d.stoppedLanes()); n != 0 {
			t.Errorf("stopped lanes = %d, want 0", n)
		}
		// The timer of an item that was dropped must not let another one go.
		stale := d.lanes["parked"].timer
		d.done(b, middleware.RetryAfter(time.Hour, errors.New("no")))
		stale.Reset(time.Second)
		time.Sleep(time.Minute)
		synctest.Wait()
		d.wantNothing()
		time.Sleep(time.Hour)
		synctest.Wait()
		d.done(d.wantBatch("u/0@0 u/0@1"), nil)
		d.wantEmpty()
	})
}

func TestDispatcher_BatchThatFailedAsAWholeIsTriedOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, nil)
		d.put("t", 0, map[int64]string{0: "a", 1: "b", 2: "c"})
		b := d.wantBatch("t/0@0 t/0@1 t/0@2")
		var verdicts []verdict
		for _, it := range b.items {
			v := d.cfg.blame(it, errors.New("panic"))
			if v.class != middleware.Retry || v.delay <= 0 || v.next.Attempt != 2 {
				t.Errorf("verdict = %+v, want another attempt after a pause", v)
			}
			verdicts = append(verdicts, v)
		}
		d.finish(b, verdicts, time.Millisecond)
		time.Sleep(time.Minute)
		synctest.Wait()
		for range 3 {
			b := d.next()
			if len(b.items) != 1 {
				t.Errorf("batch = %s, want one message", at(b))
			}
			d.done(b, nil)
		}
		d.wantEmpty()
	})
}

func TestDispatcher_ParkedLaneWaitsAndBlocksNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, nil)
		d.put("t", 0, map[int64]string{0: "a", 1: "a"})
		d.done(d.wantBatch("t/0@0"), middleware.RetryAfter(time.Hour, errors.New("no")))
		d.put("t", 0, map[int64]string{2: "b"})
		d.done(d.wantBatch("t/0@2"), nil)
		time.Sleep(time.Hour - time.Nanosecond)
		synctest.Wait()
		d.wantNothing()
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		d.done(d.wantBatch("t/0@0"), nil)
		d.done(d.wantBatch("t/0@1"), nil)
		d.wantEmpty()
	})
}

func TestDispatcher_LostIsNotCommitted(t *testing.T) {
	d := newDesk(t, nil)
	p := d.owner("t", 0)
	d.put("t", 0, map[int64]string{0: "a", 1: "b"})
	b := d.wantBatch("t/0@0 t/0@1")
	parts, _, _ := d.disown(map[string][]int32{"t": {0}}, revoked)
	d.done(b, nil)
	if !d.mayCommit(p, "m1") {
		t.Error("a part that is being revoked may not be committed")
	}
	d.disown(map[string][]int32{"t": {0}}, lost) // while it drains
	if d.mayCommit(p, "m1") || len(d.offers(parts)) != 0 || len(d.offers(d.current())) != 0 {
		t.Error("a lost part may be committed")
	}
	d.release(parts)
	if d.mayCommit(p, "m1") {
		t.Error("a released part may be committed")
	}
}

func TestDispatcher_OnlyTheMemberThatOwnsMayCommit(t *testing.T) {
	d := newDesk(t, nil)
	p := d.owner("t", 0)
	if d.mayCommit(p, "m2") || !d.mayCommit(p, "m1") {
		t.Error("m2 may commit, or m1 may not")
	}
	d.assign(nil, "m2") // thrown out and joined again, and has kept the part
	if d.owner("t", 0) != p || d.mayCommit(p, "m1") || !d.mayCommit(p, "m2") {
		t.Error("a part that survived is not stamped")
	}
}

func TestDispatcher_InterruptEndsTheBatchesOfAPart(t *testing.T) {
	d := newDesk(t, func(c *Config) { c.BatchMax = 1 })
	d.put("t", 0, map[int64]string{0: "a"})
	first := d.next()
	d.put("t", 1, map[int64]string{0: "b"})
	second := d.next()
	d.interrupt([]*part{d.owner("t", 0)}, ErrRevoked)
	if got := context.Cause(first.ctx); !errors.Is(got, ErrRevoked) {
		t.Errorf("cause = %v, want ErrRevoked", got)
	}
	if second.ctx.Err() != nil {
		t.Error("a batch of another part was ended")
	}
}

func TestDispatcher_ClosedStartsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, nil)
		got := make(chan *batch)
		go func() { got <- d.take() }()
		synctest.Wait() // it waits
		d.close()
		if b := <-got; b != nil {
			t.Error("a waiting worker got a batch")
		}
		d.put("t", 0, map[int64]string{0: "a"})
		if b := d.take(); b != nil {
			t.Error("a worker got a batch")
		}
		d.assign(map[string][]int32{"t": {7}}, "m1")
		if d.owner("t", 7) != nil {
			t.Error("a part was made")
		}
	})
}

func TestDispatcher_PollWaitsUntilWorkersAreHungry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, func(c *Config) { c.Workers, c.BatchMax = 1, 2 })
		d.put("t", 0, map[int64]string{0: "a", 1: "b"})
		polled := make(chan struct{})
		go func() {
			d.waitHungry(t.Context())
			close(polled)
		}()
		synctest.Wait()
		if isClosed(polled) {
			t.Error("polls though a full batch is ready")
		}
		d.next()
		<-polled
		d.put("t", 0, map[int64]string{2: "c", 3: "d"})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		d.waitHungry(ctx)
	})
}

// What is ready can also go by a revoke. The poll loop then waited for ever, as
// no worker would take from what was empty.
func TestDispatcher_RevokeMakesThePollGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, func(c *Config) { c.Workers, c.BatchMax = 1, 2 })
		d.put("t", 0, map[int64]string{0: "a", 1: "b"})
		polled := make(chan struct{})
		go func() {
			d.waitHungry(t.Context())
			close(polled)
		}()
		synctest.Wait()
		if isClosed(polled) {
			t.Error("polls though a full batch is ready")
		}
		d.disown(map[string][]int32{"t": {0}}, lost)
		<-polled
	})
}

// A window that is full for a moment costs less than a pause.
func TestDispatcher_PollWaitsAWhileForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, func(c *Config) { c.Window = 2 })
		d.put("t", 0, map[int64]string{0: "a", 1: "b"})
		b := d.next() // nothing is ready, so the workers are hungry
		start := time.Now()
		d.waitHungry(t.Context())
		if got := time.Since(start); got != patience {
			t.Errorf("polled after %v, want %v: other partitions would starve", got, patience)
		}
		polled := make(chan struct{})
		go func() {
			d.waitHungry(t.Context())
			close(polled)
		}()
		synctest.Wait()
		if isClosed(polled) {
			t.Error("polled though the window is full")
		}
		d.done(b, nil)
		<-polled
		if got := time.Since(start); got != patience {
			t.Errorf("polled %v after there was room", got-patience)
		}
		// What is paused is not waited for.
		d.put("t", 0, map[int64]string{2: "a", 3: "b"})
		d.put("t", 0, map[int64]string{4: "c"})
		d.waitHungry(t.Context())
		if got := time.Since(start); got != patience {
			t.Errorf("waited for a partition that is paused")
		}
	})
}

func TestDispatcher_FullPartPausesAtItsNextFetch(t *testing.T) {
	d := newDesk(t, func(c *Config) { c.Window = 4 })
	p := d.owner("t", 0)
	d.put("t", 0, map[int64]string{0: "a", 1: "b", 2: "c", 3: "d"})
	if p.paused {
		t.Error("paused by the fetch that filled it: the workers may need no more")
	}
	d.put("t", 0, map[int64]string{4: "e"})
	if !p.paused || !d.pausedNow(p) {
		t.Error("not paused though it was full")
	}
	b := d.wantBatch("t/0@0 t/0@1 t/0@2 t/0@3 t/0@4")
	finish := func(offsets ...int64) (resume []*part) {
		for _, offset := range offsets {
			j := slices.IndexFunc(b.items, func(it *item) bool { return it.offset == offset })
			_, r := d.finish(&batch{route: b.route, items: b.items[j : j+1], cancel: b.cancel}, []verdict{{}}, 0)
			resume = append(resume, r...)
		}
		return resume
	}
	if got := finish(1, 2, 3, 4); got != nil {
		t.Error("resumed though the first record is undecided: the window would grow without end")
	}
	if got := finish(0); len(got) != 1 || got[0] != p || d.pausedNow(p) {
		t.Error("not resumed")
	}
}
