package consumer

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward/middleware"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// revokes makes a consumer tell of its revokes.
func revokes(cfg *Config) <-chan Revoked {
	ch := make(chan Revoked, 100)
	cfg.Hooks.Revoked = func(r Revoked) { ch <- r }
	return ch
}

// untilOwned waits until a consumer owns the given number of partitions of topic "t".
func (s *started) untilOwned(n int) {
	s.t.Helper()
	until(s.t, "partitions to be assigned", func() bool { return len(s.parts(owned)) == n })
}

// parts returns the numbers of the partitions of topic "t" in a state.
func (s *started) parts(state ownership) (nums []int32) {
	live := s.live()
	if live == nil {
		return nil
	}
	d := live.disp
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, p := range d.parts {
		if p.state == state {
			nums = append(nums, id.num)
		}
	}
	return nums
}

// holder is a handler that keeps the first message of each record it is given,
// until it is told to let go.
type holder struct {
	mu      sync.Mutex
	started map[string]chan struct{} // by member and key
	release map[string]chan struct{}
	log     []string // member and key, when handled
}

func newHolder(names ...string) *holder {
	h := &holder{started: make(map[string]chan struct{}), release: make(map[string]chan struct{})}
	for _, n := range names {
		h.started[n], h.release[n] = make(chan struct{}), make(chan struct{})
	}
	return h
}

// route is for a member; it holds what was named as "member key".
func (h *holder) route(member string, obey bool, causes chan<- error) Route {
	return routeTo(func(ctx context.Context, m *middleware.Message) error {
		name := member + " " + m.Key
		if began, held := h.started[name]; held {
			if isClosed(began) {
				return errors.New("handled twice at once, or again")
			}
			close(began)
			done := ctx.Done()
			if !obey {
				done = nil
			}
			select {
			case <-h.release[name]:
			case <-done:
				causes <- context.Cause(ctx)
				return ctx.Err()
			}
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		h.log = append(h.log, name)
		return nil
	})
}

func (h *holder) handled() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := slices.Clone(h.log)
	slices.Sort(s)
	return s
}

func TestRevoke_WaitsForHandlersAndCommits(t *testing.T) {
	c := newCluster(t, 2, "t")
	produce(t, c, 0, "k0", "after0")
	produce(t, c, 1, "k1", "after1")
	h := newHolder("A k0", "A k1")
	cfg := fast(c)
	cfg.CommitEvery = time.Hour // only the revoke commits
	told := revokes(&cfg)
	a := start(t, cfg, h.route("A", true, nil))
	recv(t, h.started["A k0"], "k0")
	recv(t, h.started["A k1"], "k1")

	b := start(t, fast(c), h.route("B", true, nil))
	until(t, "a partition to be revoked", func() bool { return len(a.parts(revoked)) == 1 })
	num := a.parts(revoked)[0]
	if got := committed(c, num); got != -1 {
		t.Errorf("committed = %d before the handler was done", got)
	}
	key := []string{"k0", "k1"}[num]
	close(h.release["A "+key])
	r := recv(t, told, "the revoke to end")
	if r.Lost || r.InFlight != 1 || r.Abandoned != 0 || r.Undecided < 1 || !slices.Equal(r.Partitions["t"], []int32{num}) {
		t.Errorf("revoked = %+v", r)
	}
	if got := committed(c, num); got < 1 {
		t.Errorf("committed = %d after the revoke, want 1 or more", got)
	}
	b.untilOwned(1)
	close(h.release["A "+[]string{"k1", "k0"}[num]])
	until(t, "all to be handled", func() bool { return len(h.handled()) == 4 })
	for _, name := range h.handled() {
		if name == "B "+key {
			t.Error("a message that was handled before the revoke came again")
		}
	}
	for _, s := range []*started{a, b} {
		if err := s.stop(); err != nil {
			t.Errorf("Run = %v", err)
		}
	}
	if committed(c, 0) != 2 || committed(c, 1) != 2 {
		t.Errorf("committed = %d and %d, want 2 and 2", committed(c, 0), committed(c, 1))
	}
}

func TestRevoke_BeyondTheBudget(t *testing.T) {
	for name, obey := range map[string]bool{"obeys its context": true, "ignores its context": false} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 2, "t")
			produce(t, c, 0, "k0")
			produce(t, c, 1, "k1")
			h := newHolder("A k0", "A k1")
			causes := make(chan error, 2)
			cfg := fast(c)
			cfg.DrainTimeout = 50 * time.Millisecond
			told := revokes(&cfg)
			a := start(t, cfg, h.route("A", obey, causes))
			recv(t, h.started["A k0"], "k0")
			recv(t, h.started["A k1"], "k1")

			b := start(t, fast(c), h.route("B", true, nil))
			r := recv(t, told, "the revoke to end")
			wantAbandoned := 1
			if obey {
				wantAbandoned = 0
				if cause := recv(t, causes, "the context to end"); !errors.Is(cause, ErrRevoked) {
					t.Errorf("cause = %v, want ErrRevoked", cause)
				}
			}
			if r.InFlight != 1 || r.Abandoned != wantAbandoned {
				t.Errorf("revoked = %+v, want 1 in flight and %d abandoned", r, wantAbandoned)
			}
			num := r.Partitions["t"][0]
			key := []string{"k0", "k1"}[num]
			until(t, "the new owner to handle it", func() bool { return slices.Contains(h.handled(), "B "+key) })
			close(h.release["A k0"])
			close(h.release["A k1"])
			until(t, "all to be committed", func() bool { return committed(c, 0) == 1 && committed(c, 1) == 1 })
			for _, s := range []*started{a, b} {
				if err := s.stop(); err != nil {
					t.Errorf("Run = %v", err)
				}
			}
		})
	}
}

func TestRevoke_RecordThatComesBackWaitsForItsHandler(t *testing.T) {
	c := newCluster(t, 2, "t")
	produce(t, c, 0, "k0")
	produce(t, c, 1, "k1")
	var inside, most, calls atomic.Int32
	began, release := make(chan struct{}, 2), make(chan struct{})
	cfg := fast(c)
	cfg.DrainTimeout = 50 * time.Millisecond
	told := revokes(&cfg)
	var watch string // the key that is taken away, once known
	var mu sync.Mutex
	a := start(t, cfg, routeTo(func(_ context.Context, m *middleware.Message) error {
		mu.Lock()
		watched := m.Key == watch
		mu.Unlock()
		if watched {
			calls.Add(1)
			most.Store(max(most.Load(), inside.Add(1)))
			defer inside.Add(-1)
			return nil
		}
		began <- struct{}{}
		inside.Add(1)
		defer inside.Add(-1)
		<-release // whatever its context says
		return nil
	}))
	recv(t, began, "a handler")
	recv(t, began, "the other handler")
	inside.Store(0) // each of the two is counted again once it is released

	bCfg := fast(c)
	b := start(t, bCfg, routeTo(func(ctx context.Context, _ *middleware.Message) error { <-ctx.Done(); return ctx.Err() }))
	r := recv(t, told, "the revoke to end")
	num := r.Partitions["t"][0]
	mu.Lock()
	watch = []string{"k0", "k1"}[num]
	mu.Unlock()
	b.untilOwned(1)
	b.cancel()
	a.untilOwned(2)
	until(t, "the record to come back", func() bool {
		d := a.live().disp
		d.mu.Lock()
		defer d.mu.Unlock()
		p := d.parts[partID{"t", num}]
		return p != nil && p.undecided == 1
	})
	if calls.Load() != 0 {
		t.Error("a second handler of the key started while the first one ran")
	}
	close(release)
	until(t, "both to be committed", func() bool { return committed(c, 0) == 1 && committed(c, 1) == 1 })
	if calls.Load() != 1 {
		t.Errorf("calls = %d, want 1", calls.Load())
	}
	if err := a.stop(); err != nil {
		t.Errorf("Run = %v", err)
	}
}

func TestLost_EndsHandlersAndCommitsNothing(t *testing.T) {
	c := newCluster(t, 1, "t")
	produce(t, c, 0, "k0", "k1")
	h := newHolder("A k1")
	causes := make(chan error, 1)
	cfg := fast(c)
	cfg.CommitEvery = time.Hour
	told := revokes(&cfg)
	a := start(t, cfg, func() Route {
		r := h.route("A", true, causes)
		first := r.Handler
		var n atomic.Int32
		// Only the first delivery of k1 is held.
		r.Handler = each(func(ctx context.Context, m *middleware.Message) error {
			if m.Key == "k1" && n.Add(1) > 1 {
				return nil
			}
			return first.Handle(ctx, []*middleware.Message{m})[0]
		})
		return r
	}())
	recv(t, h.started["A k1"], "k1")
	until(t, "k0 to be handled", func() bool { return len(h.handled()) == 1 })
	commits := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Count: -1, Observe: true})

	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Heartbeat}, Err: kerr.UnknownMemberID})
	r := recv(t, told, "the partitions to be lost")
	if !r.Lost || r.InFlight != 1 || r.Undecided != 1 {
		t.Errorf("revoked = %+v, want Lost, one in flight", r)
	}
	if cause := recv(t, causes, "the context to end"); !errors.Is(cause, ErrRevoked) {
		t.Errorf("cause = %v, want ErrRevoked", cause)
	}
	if commits.Hits() != 0 {
		t.Error("committed what was lost")
	}
	// It joins again, gets both records again, and commits them when it stops.
	until(t, "k0 to be handled again", func() bool { return len(h.handled()) == 2 })
	a.untilReady("")
	if err := a.stop(); err != nil {
		t.Errorf("Run = %v", err)
	}
	if got := committed(c, 0); got < 1 {
		t.Errorf("committed = %d, want 1 or more", got)
	}
}

// A member that is thrown out and joins again under another ID is told that
// partitions are revoked, not lost, and its commit for them would be accepted
// though they are somebody else's by then.
func TestRevoke_UnderAnotherMemberIDCommitsNothing(t *testing.T) {
	c := newCluster(t, 2, "t")
	produce(t, c, 0, "k0")
	produce(t, c, 1, "k1")
	var mu sync.Mutex
	commits := make(map[string][]int32) // partitions by member
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Count: -1, Observe: true, When: func(r kmsg.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		req := r.(*kmsg.OffsetCommitRequest)
		for _, p := range req.Topics[0].Partitions {
			if !slices.Contains(commits[req.MemberID], p.Partition) { // asked for each partition
				commits[req.MemberID] = append(commits[req.MemberID], p.Partition)
			}
		}
		return true
	}})
	h := newHolder()
	cfg := fast(c)
	cfg.CommitEvery = time.Hour // nothing is committed before the revoke
	cfg.SessionTimeout = time.Second
	told := revokes(&cfg)
	a := start(t, cfg, h.route("A", true, nil))
	until(t, "both to be handled", func() bool { return len(h.handled()) == 2 })
	before := c.GroupInfo(group).Members[0].MemberID

	// The group forgets A's ID when A joins again, which it does since B comes.
	c.Fault(kfake.Fault{
		Keys: []kmsg.Key{kmsg.JoinGroup}, Err: kerr.UnknownMemberID,
		When: func(r kmsg.Request) bool { return r.(*kmsg.JoinGroupRequest).MemberID == before },
	})
	bCfg := fast(c)
	bCfg.CommitEvery = time.Hour
	b := start(t, bCfg, h.route("B", true, nil))
	r := recv(t, told, "a partition to be revoked")
	if r.Lost || len(r.Partitions["t"]) != 1 {
		t.Fatalf("revoked = %+v, want one partition, and not as lost", r)
	}
	num := r.Partitions["t"][0]
	b.untilOwned(1)
	until(t, "the new owner to handle its record", func() bool { return len(h.handled()) == 3 })
	mu.Lock()
	for member, nums := range commits {
		t.Errorf("%s committed %v before anybody stopped", member, nums)
	}
	mu.Unlock()
	// What A has kept it may commit, under its new ID.
	now, _ := a.live().client.GroupMetadata()
	if now == before {
		t.Fatal("the member has kept its ID, so this test shows nothing")
	}
	if err := a.stop(); err != nil {
		t.Errorf("Run = %v", err)
	}
	mu.Lock()
	defer mu.Unlock()
	if got, want := commits[now], []int32{1 - num}; !slices.Equal(got, want) || len(commits) != 1 {
		t.Errorf("commits = %v, want %v by %s alone", commits, want, now)
	}
}

func TestRevoke_LeavesNoPauseBehind(t *testing.T) {
	c := newCluster(t, 2, "t")
	for num := range int32(2) {
		produce(t, c, num, slices.Repeat([]string{"stuck"}, 100)...)
	}
	cfg := fast(c)
	cfg.Window, cfg.DrainTimeout = 10, 20*time.Millisecond
	cfg.Client = append(cfg.Client, kgo.FetchMaxPartitionBytes(1))
	var open atomic.Bool
	obeying := routeTo(func(ctx context.Context, _ *middleware.Message) error {
		if open.Load() {
			return nil
		}
		<-ctx.Done()
		return ctx.Err()
	})
	a := start(t, cfg, obeying)
	paused := func(s *started) int {
		if live := s.live(); live != nil {
			return len(live.client.PauseFetchPartitions(nil)["t"])
		}
		return 0
	}
	until(t, "both partitions to be paused", func() bool { return paused(a) == 2 })
	b := start(t, cfg, obeying)
	b.untilOwned(1)
	until(t, "the pause of what was revoked to end", func() bool { return paused(a) == 1 })
	open.Store(true)
	if err := b.stop(); err != nil {
		t.Errorf("Run = %v", err)
	}
	if err := a.stop(); err != nil { // ends what hangs
		t.Errorf("Run = %v", err)
	}
}

// The client keeps a pause for a partition that it does not have.
func TestAssign_EndsAPauseOfBefore(t *testing.T) {
	c := newCluster(t, 2, "t")
	a := start(t, fast(c), routeTo(nothing))
	a.untilOwned(2)
	b := start(t, fast(c), routeTo(nothing))
	b.untilOwned(1)
	a.untilOwned(1)
	num := b.parts(owned)[0]
	a.live().client.PauseFetchPartitions(map[string][]int32{"t": {num}})
	if err := b.stop(); err != nil {
		t.Errorf("Run = %v", err)
	}
	a.untilOwned(2)
	produce(t, c, num, "a")
	until(t, "the record to be committed", func() bool { return committed(c, num) == 1 })
}
