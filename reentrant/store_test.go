package reentrant

import (
	"testing"
	"time"

	"github.com/onceward/onceward/internal/devstack/devtest"
)

// Each script may run twice, since clients repeat calls whose reply was lost: the
// second answer is the first, and so is the state.
func TestScripts_SafeToRepeat(t *testing.T) {
	rdb := devtest.Redis(t)
	s := newRedisStore(rdb, keyspace{"repeat-" + newOwner(), 4})
	acquireTwice := func(owner string, depth int) acquireReply {
		t.Helper()
		req := []acquireRequest{{name: "a", owner: owner, depth: depth, ttl: time.Minute}}
		first, second := s.acquire(t.Context(), req)[0], s.acquire(t.Context(), req)[0]
		if first.err != nil || first.answer != second.answer || first.fence != second.fence {
			t.Errorf("acquire %d by %s: %+v, repeated %+v", depth, owner, first, second)
		}
		return first
	}
	releaseTwice := func(owner string, leave int) (first, second holdReply) {
		t.Helper()
		req := []releaseRequest{{name: "a", owner: owner, leave: leave, ttl: time.Minute}}
		first, second = s.release(t.Context(), req)[0], s.release(t.Context(), req)[0]
		if first.err != nil || second.err != nil {
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
		if r := acquireTwice("me", d); r.answer != isHeld || r.fence != grant.fence {
			t.Errorf("enter %d: %+v, want held with fence %d", d, r, grant.fence)
		}
	}
	acquireTwice("me", 1) // a late copy of the first
	depth("me", "5")
	if r := acquireTwice("you", 1); r.answer != isBusy || r.left <= 50*time.Second {
		t.Errorf("another owner: %+v, want busy for about a minute", r)
	}
	if r := acquireTwice("you", 2); r.answer != isGone {
		t.Errorf("another owner, deeper: %+v, want gone", r)
	}
	if first, _ := releaseTwice("you", 0); first.answer != isBusy {
		t.Errorf("release by another owner: %+v, want busy", first)
	}
	renew := []renewRequest{
		{name: "a", owner: "me", fence: grant.fence, ttl: time.Hour},
		{name: "a", owner: "me", fence: grant.fence - 1, ttl: 2 * time.Hour},
		{name: "a", owner: "you", fence: grant.fence, ttl: 2 * time.Hour},
		{name: "b", owner: "me", fence: grant.fence, ttl: time.Hour},
	}
	for range 2 {
		replies := s.renew(t.Context(), renew)
		for i, want := range []answer{isHeld, isBusy, isBusy, isGone} {
			if replies[i].err != nil || replies[i].answer != want {
				t.Errorf("renew %d: %+v, want answer %d", i, replies[i], want)
			}
		}
	}
	if ttl := rdb.PTTL(t.Context(), s.keys.of("a").lock).Val(); ttl <= 50*time.Minute || ttl > time.Hour {
		t.Errorf("TTL after the renewals = %v, want about an hour", ttl)
	}
	for leave := 4; leave >= 1; leave-- {
		if first, second := releaseTwice("me", leave); first.answer != isHeld || second.answer != isHeld {
			t.Errorf("release to %d: %+v, repeated %+v, want held", leave, first, second)
		}
	}
	depth("me", "1")
	if first, second := releaseTwice("me", 0); first.answer != isHeld || second.answer != isGone {
		t.Errorf("last release: %+v, repeated %+v, want held, then gone", first, second)
	}
	releaseLate := acquireTwice("next", 1)
	releaseTwice("me", 0) // a late copy touches no newer hold
	depth("next", "1")
	if releaseLate.fence <= grant.fence {
		t.Errorf("fence %d after %d, must grow", releaseLate.fence, grant.fence)
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
	s := newRedisStore(rdb, keyspace{"p", 4})
	for _, n := range []int{1, 3} {
		reqs := make([]acquireRequest, n)
		for i := range reqs {
			reqs[i] = acquireRequest{name: string(rune('a' + i)), owner: newOwner(), depth: 1, ttl: time.Minute}
		}
		if err := rdb.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		for i, r := range s.acquire(t.Context(), reqs) {
			if r.err != nil || r.answer != isHeld {
				t.Errorf("%d of %d: %+v, want held", i, n, r)
			}
		}
		rdb.FlushAll(t.Context())
	}
}

func TestStore_UnexpectedReplies(t *testing.T) {
	rdb := devtest.Redis(t)
	s := newRedisStore(rdb, keyspace{"odd-" + newOwner(), 4})
	key := s.keys.of("a").lock
	rdb.Set(t.Context(), key, "not a hash", time.Minute)
	if r := s.acquire(t.Context(), []acquireRequest{{name: "a", owner: "me", depth: 1, ttl: time.Minute}})[0]; r.err == nil || !refused(r.err) {
		t.Errorf("acquire on a key of another type: %+v, want the server's refusal", r)
	}
	rdb.Del(t.Context(), key)
	rdb.HSet(t.Context(), key, "somebody", "1") // and no TTL
	if r := s.acquire(t.Context(), []acquireRequest{{name: "a", owner: "me", depth: 1, ttl: time.Minute}})[0]; r.answer != isBusy || r.left != 0 {
		t.Errorf("acquire on a lock without TTL: %+v, want busy with nothing known", r)
	}
	rdb.Del(t.Context(), key)
}

// The layout is a contract between processes.
func TestKeyspace(t *testing.T) {
	got := keyspace{"onceward", 256}.of("order:1001")
	if want := (keys{"onceward:{73}:lock:order:1001", "onceward:{73}:fence"}); got != want {
		t.Errorf("keys = %+v, want %+v", got, want)
	}
}
