package reentrant

import (
	"testing"
	"time"

	"github.com/onceward/onceward/internal/devstack/devtest"
	"github.com/redis/go-redis/v9"
)

func newStore(t *testing.T, rdb redis.UniversalClient, prefix string) *RedisStore {
	t.Helper()
	s, err := NewRedisStore(rdb, Config{Prefix: prefix, Shards: 4})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Each script may run twice, since clients repeat calls whose reply was lost: the
// second answer is the first, and so is the state.
func TestScripts_SafeToRepeat(t *testing.T) {
	rdb := devtest.Redis(t)
	s := newStore(t, rdb, "repeat-"+newOwners().client)
	acquireTwice := func(owner string, depth int) AcquireReply {
		t.Helper()
		req := []AcquireRequest{{Name: "a", Owner: owner, Depth: depth, TTL: time.Minute}}
		first, second := s.Acquire(t.Context(), req)[0], s.Acquire(t.Context(), req)[0]
		if first.Err != nil || first.Answer != second.Answer || first.Fence != second.Fence {
			t.Errorf("acquire %d by %s: %+v, repeated %+v", depth, owner, first, second)
		}
		return first
	}
	releaseTwice := func(owner string, leave int) (first, second HoldReply) {
		t.Helper()
		req := []ReleaseRequest{{Name: "a", Owner: owner, Leave: leave, TTL: time.Minute}}
		first, second = s.Release(t.Context(), req)[0], s.Release(t.Context(), req)[0]
		if first.Err != nil || second.Err != nil {
			t.Errorf("release to %d by %s: %+v, repeated %+v", leave, owner, first, second)
		}
		return first, second
	}
	depth := func(owner, want string) {
		t.Helper()
		if got := rdb.HGet(t.Context(), s.keys.of("a").lock, owner).Val(); got != want {
			t.Errorf("depth of %s = %q, want %q", owner, got, want)
		}
	}

	grant := acquireTwice("me", 1)
	depth("me", "1")
	for d := 2; d <= 5; d++ {
		if r := acquireTwice("me", d); r.Answer != Held || r.Fence != grant.Fence {
			t.Errorf("enter %d: %+v, want held with fence %d", d, r, grant.Fence)
		}
	}
	acquireTwice("me", 1) // a late copy of the first
	depth("me", "5")
	if r := acquireTwice("you", 1); r.Answer != Busy || r.Left <= 50*time.Second {
		t.Errorf("another Owner: %+v, want busy for about a minute", r)
	}
	if r := acquireTwice("you", 2); r.Answer != Gone {
		t.Errorf("another owner, deeper: %+v, want gone", r)
	}
	if first, _ := releaseTwice("you", 0); first.Answer != Busy {
		t.Errorf("release by another Owner: %+v, want busy", first)
	}
	renew := []RenewRequest{
		{Name: "a", Owner: "me", Fence: grant.Fence, TTL: time.Hour},
		{Name: "a", Owner: "me", Fence: grant.Fence - 1, TTL: 2 * time.Hour},
		{Name: "a", Owner: "you", Fence: grant.Fence, TTL: 2 * time.Hour},
		{Name: "b", Owner: "me", Fence: grant.Fence, TTL: time.Hour},
	}
	for range 2 {
		replies := s.Renew(t.Context(), renew)
		for i, want := range []Answer{Held, Busy, Busy, Gone} {
			if replies[i].Err != nil || replies[i].Answer != want {
				t.Errorf("renew %d: %+v, want answer %d", i, replies[i], want)
			}
		}
	}
	if ttl := rdb.PTTL(t.Context(), s.keys.of("a").lock).Val(); ttl <= 50*time.Minute || ttl > time.Hour {
		t.Errorf("TTL after the renewals = %v, want about an hour", ttl)
	}
	for leave := 4; leave >= 1; leave-- {
		if first, second := releaseTwice("me", leave); first.Answer != Held || second.Answer != Held {
			t.Errorf("release to %d: %+v, repeated %+v, want held", leave, first, second)
		}
	}
	depth("me", "1")
	if first, second := releaseTwice("me", 0); first.Answer != Held || second.Answer != Gone {
		t.Errorf("last release: %+v, repeated %+v, want held, then gone", first, second)
	}
	releaseLate := acquireTwice("next", 1)
	releaseTwice("me", 0) // a late copy touches no newer hold
	depth("next", "1")
	if releaseLate.Fence <= grant.Fence {
		t.Errorf("fence %d after %d, must grow", releaseLate.Fence, grant.Fence)
	}
	// A lost enter left the depth one too high: the last release frees all the same.
	acquireTwice("next", 2)
	releaseTwice("next", 0)
	if n := rdb.Exists(t.Context(), s.keys.of("a").lock).Val(); n != 0 {
		t.Error("the lock is still there after the last release")
	}
}

// A server that was restarted does not know the scripts any more.
func TestRun_ServerForgotScripts(t *testing.T) {
	server := devtest.OwnRedis(t)
	rdb := server.Client()
	s := newStore(t, rdb, "p")
	for _, n := range []int{1, 3} {
		reqs := make([]AcquireRequest, n)
		for i := range reqs {
			reqs[i] = AcquireRequest{Name: string(rune('a' + i)), Owner: newOwners().client, Depth: 1, TTL: time.Minute}
		}
		if err := rdb.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		for i, r := range s.Acquire(t.Context(), reqs) {
			if r.Err != nil || r.Answer != Held {
				t.Errorf("%d of %d: %+v, want held", i, n, r)
			}
		}
		rdb.FlushAll(t.Context())
	}
}

func TestStore_UnexpectedReplies(t *testing.T) {
	rdb := devtest.Redis(t)
	s := newStore(t, rdb, "odd-"+newOwners().client)
	key := s.keys.of("a").lock
	rdb.Set(t.Context(), key, "not a hash", time.Minute)
	if r := s.Acquire(t.Context(), []AcquireRequest{{Name: "a", Owner: "me", Depth: 1, TTL: time.Minute}})[0]; r.Err == nil || !Refused(r.Err) {
		t.Errorf("acquire on a key of another type: %+v, want the server's refusal", r)
	}
	rdb.Del(t.Context(), key)
	rdb.HSet(t.Context(), key, "somebody", "1") // and no TTL
	if r := s.Acquire(t.Context(), []AcquireRequest{{Name: "a", Owner: "me", Depth: 1, TTL: time.Minute}})[0]; r.Answer != Busy || r.Left != 0 {
		t.Errorf("acquire on a lock without TTL: %+v, want busy with nothing known", r)
	}
	rdb.Del(t.Context(), key)
}

// The layout is a contract between processes.
func TestKeyspace(t *testing.T) {
	k := newKeyspace("onceward", 256)
	got := k.of("order:1001")
	if got.lock != "onceward:{73}:lock:order:1001" || got.wait != "onceward:{73}:wait:order:1001" || *got.fence != "onceward:{73}:fence" {
		t.Errorf("keys = %v %v %v", got.lock, got.wait, *got.fence)
	}
	if name, ok := k.nameOf(got.lock); !ok || name != "order:1001" {
		t.Errorf("nameOf(%q) = %q %v", got.lock, name, ok)
	}
	if name, ok := k.nameOf("other:{73}:lock:order:1001"); ok {
		t.Errorf("nameOf a key of another prefix = %q", name)
	}
}
