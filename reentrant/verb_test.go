package reentrant

import (
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/devstack/devtest"
	"github.com/redis/go-redis/v9"
)

// storesOf returns the store that serves many locks in a run, and the one that does not.
func storesOf(t *testing.T, rdb redis.UniversalClient) map[string]*RedisStore {
	stores := map[string]*RedisStore{}
	for _, single := range []bool{false, true} {
		s, err := NewRedisStore(rdb, Config{Prefix: "verb-" + newOwners().client, SingleKeyScripts: single})
		if err != nil {
			t.Fatal(err)
		}
		stores["SingleKeyScripts="+strconv.FormatBool(single)] = s
	}
	return stores
}

// The server's refusal about one lock of a call is told of that lock, in the server's
// words, and the others are served. Whatever kind of key is in the way.
func TestAsk_OneOfSeveralFails(t *testing.T) {
	rdb := devtest.Redis(t)
	for name, s := range storesOf(t, rdb) {
		t.Run(name, func(t *testing.T) {
			names := []string{"a", "b", "c", "d"}
			lock := s.keys.of("b").lock
			fence := *s.keys.of("c").fence
			rdb.Set(t.Context(), lock, "not a hash", time.Minute)
			rdb.HSet(t.Context(), fence, "not a number", "1")
			var acquire []AcquireRequest
			var renew []RenewRequest
			var release []ReleaseRequest
			for _, name := range names {
				acquire = append(acquire, AcquireRequest{Name: name, Owner: "me." + name, Depth: 1, TTL: time.Minute})
			}
			refused := func(what string, i int, err error) {
				t.Helper()
				if err == nil || !Refused(err) || !strings.Contains(err.Error(), "WRONGTYPE") || !strings.Contains(err.Error(), strconv.Quote(names[i])) {
					t.Errorf("%s %q: error %v, want the server's refusal", what, names[i], err)
				}
			}
			for i, r := range s.Acquire(t.Context(), acquire) {
				if i == 1 || i == 2 {
					refused("acquire", i, r.Err)
				} else if r.Answer != Held || r.Err != nil {
					t.Errorf("acquire %q: %+v, want held", names[i], r)
				}
				renew = append(renew, RenewRequest{Name: names[i], Owner: "me." + names[i], Fence: r.Fence, TTL: time.Minute})
				release = append(release, ReleaseRequest{Name: names[i], Owner: "me." + names[i], TTL: time.Minute})
			}
			if n := rdb.Exists(t.Context(), s.keys.of("c").lock).Val(); n != 0 {
				t.Error("a lock was made without a fence")
			}
			for i, r := range s.Renew(t.Context(), renew) {
				switch {
				case i == 1:
					refused("renew", i, r.Err)
				case i == 2 && r.Answer != Gone, i != 2 && r.Answer != Held:
					t.Errorf("renew %q: %+v", names[i], r)
				}
			}
			for i, r := range s.Release(t.Context(), release) {
				switch {
				case i == 1:
					refused("release", i, r.Err)
				case i == 2 && r.Answer != Gone, i != 2 && r.Answer != Held:
					t.Errorf("release %q: %+v", names[i], r)
				}
			}
			rdb.Del(t.Context(), lock, fence)
		})
	}
}

// Requests that differ in what a run says only once are served apart, and in order.
func TestAsk_UnlikeRequests(t *testing.T) {
	rdb := devtest.Redis(t)
	for name, s := range storesOf(t, rdb) {
		t.Run(name, func(t *testing.T) {
			base := AcquireRequest{Owner: "me.1", Depth: 1, TTL: time.Minute}
			with := func(name string, change func(*AcquireRequest)) AcquireRequest {
				r := base
				r.Name = name
				change(&r)
				return r
			}
			replies := s.Acquire(t.Context(), []AcquireRequest{
				with("a", func(*AcquireRequest) {}),
				with("a", func(r *AcquireRequest) { r.Depth = 2 }),
				with("b", func(r *AcquireRequest) { r.TTL = time.Hour }),
				with("c", func(r *AcquireRequest) { r.FenceAtLeast = 1 << 52 }),
				with("a", func(r *AcquireRequest) { r.Owner, r.Seat = "you.1", time.Minute }),
				with("a", func(r *AcquireRequest) { r.Owner = "you.2" }),
			})
			for i, want := range []Answer{Held, Held, Held, Held, Busy, Busy} {
				if replies[i].Answer != want {
					t.Errorf("acquire %d: %+v, want answer %d", i, replies[i], want)
				}
			}
			if a, b := replies[0].Fence, replies[1].Fence; a != b {
				t.Errorf("fence %d, and deeper %d", a, b)
			}
			if f := replies[3].Fence; f < 1<<52 || replies[2].Fence >= 1<<52 {
				t.Errorf("fence %d with a hint, %d without", f, replies[2].Fence)
			}
			if ttl := rdb.PTTL(t.Context(), s.keys.of("b").lock).Val(); ttl < 50*time.Minute {
				t.Errorf("TTL %v, want an hour", ttl)
			}
			if seats := rdb.HKeys(t.Context(), s.keys.of("a").wait).Val(); len(seats) != 1 || seats[0] != "you.1" {
				t.Errorf("seats of %v, want one of the owner that asked for it", seats)
			}
			out := s.Release(t.Context(), []ReleaseRequest{
				{Name: "a", Owner: "you.1", GiveUp: true, TTL: time.Minute},
				{Name: "a", Owner: "me.1", Leave: 1, TTL: time.Minute},
				{Name: "b", Owner: "me.1", TTL: time.Hour},
				{Name: "a", Owner: "me.1", TTL: time.Minute},
				{Name: "a", Owner: "me.1", TTL: time.Minute},
			})
			for i, want := range []Answer{Busy, Held, Held, Held, Gone} {
				if out[i].Answer != want {
					t.Errorf("release %d: %+v, want answer %d", i, out[i], want)
				}
			}
		})
	}
}

// A counter that is ahead of the clock, or is no fence of our time, still grows.
func TestGrant_CounterAheadOfClock(t *testing.T) {
	rdb := devtest.Redis(t)
	s := newStore(t, rdb, "ahead-"+newOwners().client)
	k := s.keys.of("a")
	ahead := time.Now().Add(time.Hour).UnixMicro()
	for _, tt := range []struct {
		counter string
		above   int64
	}{
		{strconv.FormatInt(ahead, 10), ahead},
		{"999", time.Now().Add(-time.Hour).UnixMicro()}, // as a text it is above
		{"9007199254740000", 9007199254740000},          // near the highest that is counted exactly
	} {
		rdb.Set(t.Context(), *k.fence, tt.counter, 0)
		last := tt.above
		for range 3 {
			r := s.Acquire(t.Context(), []AcquireRequest{{Name: "a", Owner: "me.1", Depth: 1, TTL: time.Minute}})[0]
			if r.Answer != Held || r.Fence <= last {
				t.Errorf("counter %s: %+v, want a fence above %d", tt.counter, r, last)
			}
			if got := rdb.Get(t.Context(), *k.fence).Val(); got != strconv.FormatInt(r.Fence, 10) {
				t.Errorf("counter is %s after fence %d", got, r.Fence)
			}
			last = r.Fence
			if r := s.Release(t.Context(), []ReleaseRequest{{Name: "a", Owner: "me.1", TTL: time.Minute}})[0]; r.Answer != Held {
				t.Errorf("release: %+v", r)
			}
		}
	}
}

// What a server of another kind might answer is an error that shows it.
func TestDecode_UnexpectedNumbers(t *testing.T) {
	rdb := devtest.Redis(t)
	s := newStore(t, rdb, "odd-numbers-"+newOwners().client)
	for _, ns := range [][]int64{{1, 0, 0}, {0, -1, 0}, {0, 0, -1}, {2, 5, 0}, {failed, 0, 0}} {
		if r, err := s.acquire.decode(ns); err == nil || r != (AcquireReply{}) {
			t.Errorf("acquire %d: %+v, %v", ns, r, err)
		}
	}
	for _, n := range []int64{2, failed} {
		if r, err := decodeHold([]int64{n}); err == nil || r != (HoldReply{}) {
			t.Errorf("hold %d: %+v, %v", n, r, err)
		}
	}
	cmd := redis.NewIntSliceCmd(t.Context())
	cmd.SetVal([]int64{1, 2, 3})
	r := run{cmd: cmd}
	if _, err := r.numbers(2); err == nil || !strings.Contains(err.Error(), "[1 2 3]") {
		t.Errorf("three numbers for two: %v", err)
	}
	broken := errors.New("broken")
	cmd.SetErr(broken)
	if _, err := r.numbers(3); !errors.Is(err, broken) {
		t.Errorf("error = %v", err)
	}
}

// Several locks of one call, some in one shard: each gets a fence above the counter,
// whether the clock is enough for that or not, and the counter is never below a fence.
func TestGrant_SeveralAtOnce(t *testing.T) {
	rdb := devtest.Redis(t)
	s := newStore(t, rdb, "several-"+newOwners().client) // of four shards
	ahead := time.Now().Add(time.Hour).UnixMicro()
	rdb.Set(t.Context(), s.keys.shards[1].fence, ahead, 0)
	rdb.Set(t.Context(), s.keys.shards[2].fence, "999", 0) // as a text it is above
	var reqs []AcquireRequest
	var out []ReleaseRequest
	for i := range 2 * s.perRun {
		name := "lock:" + strconv.Itoa(i%(s.perRun+3)) // the last ones twice
		reqs = append(reqs, AcquireRequest{Name: name, Owner: "me." + strconv.Itoa(i), Depth: 1, TTL: time.Minute})
		out = append(out, ReleaseRequest{Name: name, Owner: "me." + strconv.Itoa(i), TTL: time.Minute})
	}
	last := map[string]int64{}
	for range 3 {
		held := map[string]bool{}
		for i, r := range s.Acquire(t.Context(), reqs) {
			name := reqs[i].Name
			if held[name] {
				if r.Answer != Busy {
					t.Errorf("%s again: %+v, want busy", name, r)
				}
				continue
			}
			held[name] = true
			k := s.keys.of(name)
			if r.Answer != Held || r.Fence <= last[name] {
				t.Errorf("%s: %+v, want a fence above %d", name, r, last[name])
			}
			if *k.fence == s.keys.shards[1].fence && r.Fence <= ahead {
				t.Errorf("%s: fence %d, the counter was at %d", name, r.Fence, ahead)
			}
			if counter, err := rdb.Get(t.Context(), *k.fence).Int64(); err != nil || counter < r.Fence {
				t.Errorf("%s: fence %d, and then the counter is %d (%v)", name, r.Fence, counter, err)
			}
			if got := rdb.HGet(t.Context(), k.lock, "@fence").Val(); got != strconv.FormatInt(r.Fence, 10) {
				t.Errorf("%s: fence %d, in Redis it is %s", name, r.Fence, got)
			}
			last[name] = r.Fence
		}
		s.Release(t.Context(), out)
	}
}
