package watchdog_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward/watchdog"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const ttl = 3 * time.Second

// trust is how long a lease of ttl is relied on.
var trust = ttl - watchdog.Margin(ttl)

// holder notes when and why its lease was lost.
type holder struct {
	watchdog.Lease
	lost chan watchdog.Reason
	dead bool // its server never answers
}

func (h *holder) Lost(r watchdog.Reason) { h.lost <- r }

func newHolder(w *watchdog.Watchdog, group string) *holder {
	h := &holder{lost: make(chan watchdog.Reason, 2)}
	h.Init(w, group, ttl, h)
	return h
}

func newWatchdog(t *testing.T, cfg watchdog.Config) *watchdog.Watchdog {
	t.Helper()
	w, err := watchdog.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

// always answers every renewal with v.
func always(v watchdog.Verdict) func(context.Context, []*watchdog.Lease) []watchdog.Verdict {
	return func(_ context.Context, ls []*watchdog.Lease) []watchdog.Verdict {
		vs := make([]watchdog.Verdict, len(ls))
		for i := range vs {
			vs[i] = v
		}
		return vs
	}
}

func grant(t *testing.T, h *holder, terms watchdog.Terms) {
	t.Helper()
	terms.Sent = time.Now()
	if !h.Grant(terms) {
		t.Fatal("Grant = false, want true")
	}
}

func TestLease_StaysHeldWhileRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatchdog(t, watchdog.Config{Renew: always(watchdog.Held)})
		h := newHolder(w, "")
		grant(t, h, watchdog.Terms{})
		time.Sleep(100 * ttl)
		select {
		case r := <-h.lost:
			t.Fatalf("lost: %v", r)
		default:
		}
		if got := h.Remaining(); got < ttl/2 {
			t.Errorf("Remaining = %v, want at least %v", got, ttl/2)
		}
		if n := w.Stats().Renewed; n < 299 || n > 310 {
			t.Errorf("renewed %d times in 100 TTLs, want about 300", n)
		}
		if !h.End() {
			t.Error("End = false, want true")
		}
		before := w.Stats().Renewed
		time.Sleep(10 * ttl)
		if after := w.Stats().Renewed; after != before {
			t.Errorf("renewed %d times after End", after-before)
		}
	})
}

// The holder is told before the TTL is over, whatever the renewals do.
func TestLease_LostWhenTrustEnds(t *testing.T) {
	hang := func(ctx context.Context, _ []*watchdog.Lease) []watchdog.Verdict {
		<-ctx.Done()
		return nil
	}
	panics := func(context.Context, []*watchdog.Lease) []watchdog.Verdict { panic("renew") }
	tests := []struct {
		name  string
		renew func(context.Context, []*watchdog.Lease) []watchdog.Verdict
		terms watchdog.Terms
		want  watchdog.Reason
		after time.Duration
	}{
		{"no answer", always(watchdog.Unknown), watchdog.Terms{}, watchdog.Unreachable, trust},
		{"hangs", hang, watchdog.Terms{}, watchdog.Unreachable, trust},
		{"panics", panics, watchdog.Terms{}, watchdog.Unreachable, trust},
		{"shorter grant", always(watchdog.Unknown), watchdog.Terms{For: ttl / 3}, watchdog.Unreachable, ttl/3 - watchdog.Margin(ttl/3)},
		{"fixed", always(watchdog.Held), watchdog.Terms{Fixed: true}, watchdog.Expired, trust},
		{"maximum hold", always(watchdog.Held), watchdog.Terms{MaxHold: 5 * ttl}, watchdog.TooLong, 5 * ttl},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWatchdog(t, watchdog.Config{Renew: tt.renew})
				h := newHolder(w, "")
				start := time.Now()
				grant(t, h, tt.terms)
				if got := <-h.lost; got != tt.want {
					t.Errorf("lost: %v, want %v", got, tt.want)
				}
				if got := time.Since(start); got != tt.after {
					t.Errorf("lost after %v, want %v", got, tt.after)
				}
				if h.End() {
					t.Error("End of a lost lease = true, want false")
				}
				if got := h.Remaining(); got != 0 {
					t.Errorf("Remaining of a lost lease = %v, want 0", got)
				}
			})
		})
	}
}

func TestLease_LostByVerdict(t *testing.T) {
	for verdict, want := range map[watchdog.Verdict]watchdog.Reason{watchdog.Gone: watchdog.Expired, watchdog.Taken: watchdog.TakenOver} {
		synctest.Test(t, func(t *testing.T) {
			w := newWatchdog(t, watchdog.Config{Renew: always(verdict)})
			h := newHolder(w, "")
			start := time.Now()
			grant(t, h, watchdog.Terms{})
			if got := <-h.lost; got != want {
				t.Errorf("lost: %v, want %v", got, want)
			}
			if got := time.Since(start); got > ttl/3 {
				t.Errorf("lost after %v, want at the first renewal, within %v", got, ttl/3)
			}
		})
	}
}

// Two renewals in a row may fail.
func TestLease_SurvivesFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		w := newWatchdog(t, watchdog.Config{Renew: func(_ context.Context, ls []*watchdog.Lease) []watchdog.Verdict {
			if calls.Add(1)%3 != 0 {
				return nil // shorter than asked for: unknown
			}
			return always(watchdog.Held)(nil, ls)
		}})
		h := newHolder(w, "")
		grant(t, h, watchdog.Terms{})
		time.Sleep(50 * ttl)
		select {
		case r := <-h.lost:
			t.Fatalf("lost: %v", r)
		default:
		}
		if w.Stats().Failed < 100 {
			t.Errorf("failed %d times, the test wants at least 100", w.Stats().Failed)
		}
	})
}

// A group that never answers delays no other.
func TestWatchdog_GroupsAreApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatchdog(t, watchdog.Config{Chunk: 10, Renew: func(ctx context.Context, ls []*watchdog.Lease) []watchdog.Verdict {
			if ls[0].Holder().(*holder).dead {
				<-ctx.Done()
				return nil
			}
			return always(watchdog.Held)(ctx, ls)
		}})
		for range 100 {
			h := newHolder(w, "dead")
			h.dead = true
			grant(t, h, watchdog.Terms{})
		}
		alive := make([]*holder, 100)
		for i := range alive {
			alive[i] = newHolder(w, "alive")
			grant(t, alive[i], watchdog.Terms{})
		}
		time.Sleep(10 * ttl)
		for i, h := range alive {
			if h.Remaining() == 0 {
				t.Errorf("lease %d of the group that answers was lost: %v", i, <-h.lost)
			}
		}
		if got := w.Stats().Leases; got != len(alive) {
			t.Errorf("%d leases held, want the %d of the group that answers", got, len(alive))
		}
	})
}

func TestWatchdog_ChunksAndSpreads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var sizes []int
		atOnce := map[time.Time]int{}
		w := newWatchdog(t, watchdog.Config{Chunk: 7, Renew: func(ctx context.Context, ls []*watchdog.Lease) []watchdog.Verdict {
			mu.Lock()
			sizes = append(sizes, len(ls))
			atOnce[time.Now()] += len(ls)
			mu.Unlock()
			return always(watchdog.Held)(ctx, ls)
		}})
		for range 1000 {
			h := newHolder(w, "")
			grant(t, h, watchdog.Terms{})
		}
		time.Sleep(ttl / 3)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		total := 0
		for _, n := range sizes {
			if n > 7 {
				t.Fatalf("a call got %d leases, want at most 7", n)
			}
			total += n
		}
		if total != 1000 {
			t.Errorf("%d renewals in the first period, want 1000", total)
		}
		for _, n := range atOnce {
			if n > 100 {
				t.Errorf("%d renewals at once: what was granted together was renewed together", n)
			}
		}
		if len(sizes) > 250 {
			t.Errorf("%d calls for 1000 leases: what was due at nearly the same time was not renewed together", len(sizes))
		}
		if got := w.Stats().Lateness; got != 0 {
			t.Errorf("a renewal was sent %v late, want 0 in virtual time", got)
		}
	})
}

// The answer of a renewal that was under way when the lease ended is about
// nothing.
func TestLease_EndBeatsVerdict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, answer := make(chan struct{}), make(chan watchdog.Verdict)
		w := newWatchdog(t, watchdog.Config{Renew: func(context.Context, []*watchdog.Lease) []watchdog.Verdict {
			close(asked)
			return []watchdog.Verdict{<-answer}
		}})
		h := newHolder(w, "")
		grant(t, h, watchdog.Terms{})
		<-asked
		if !h.End() {
			t.Fatal("End = false, want true")
		}
		answer <- watchdog.Gone
		synctest.Wait()
		select {
		case r := <-h.lost:
			t.Errorf("told %v after End", r)
		default:
		}
	})
}

func TestGrant_TooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatchdog(t, watchdog.Config{Renew: always(watchdog.Held)})
		h := newHolder(w, "")
		if h.Grant(watchdog.Terms{Sent: time.Now().Add(-trust)}) {
			t.Error("Grant of a lease whose trust is over = true, want false")
		}
		ended := newHolder(w, "")
		ended.End()
		if ended.Grant(watchdog.Terms{Sent: time.Now()}) {
			t.Error("Grant after End = true, want false")
		}
	})
}

func TestWatchdog_Close(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatchdog(t, watchdog.Config{Renew: always(watchdog.Held)})
		h := newHolder(w, "")
		grant(t, h, watchdog.Terms{Fixed: true})
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(w.Close)
		}
		wg.Wait()
		if got := <-h.lost; got != watchdog.Closed {
			t.Errorf("lost: %v, want %v", got, watchdog.Closed)
		}
		late := newHolder(w, "")
		if late.Grant(watchdog.Terms{Sent: time.Now()}) {
			t.Error("Grant after Close = true, want false")
		}
	})
}

func TestHolder_PanicEndsNothingElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := make(chan any, 1)
		w := newWatchdog(t, watchdog.Config{
			Renew:    always(watchdog.Held),
			Panicked: func(v any, _ []byte) { told <- v },
		})
		var bad panicker
		bad.Init(w, "", ttl, &bad)
		bad.Grant(watchdog.Terms{Sent: time.Now(), Fixed: true})
		good := newHolder(w, "")
		grant(t, good, watchdog.Terms{})
		if got := <-told; got != "holder" {
			t.Errorf("panicked with %v, want holder", got)
		}
		time.Sleep(10 * ttl)
		if good.Remaining() == 0 {
			t.Error("another lease was lost")
		}
	})
}

type panicker struct{ watchdog.Lease }

func (*panicker) Lost(watchdog.Reason) { panic("holder") }

func TestNew_Validates(t *testing.T) {
	for _, cfg := range []watchdog.Config{
		{},
		{Renew: always(watchdog.Held), Chunk: -1},
		{Renew: always(watchdog.Held), Flights: -1},
	} {
		if _, err := watchdog.New(cfg); err == nil {
			t.Errorf("New(%+v) accepted", cfg)
		}
	}
}

func Example() {
	w, err := watchdog.New(watchdog.Config{
		Renew: func(ctx context.Context, leases []*watchdog.Lease) []watchdog.Verdict {
			return make([]watchdog.Verdict, len(leases)) // ask the server; here nobody answers
		},
	})
	if err != nil {
		panic(err)
	}
	defer w.Close()

	h := &holder{lost: make(chan watchdog.Reason, 1)}
	h.Init(w, "server-1", 90*time.Millisecond, h)
	h.Grant(watchdog.Terms{Sent: time.Now()})
	fmt.Println("lost:", <-h.lost)
	// Output: lost: server unreachable
}
