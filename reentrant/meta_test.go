package reentrant_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/devstack/devtest"
	"github.com/onceward/onceward/reentrant"
	"github.com/redis/go-redis/v9"
)

// Processes that could not exclude each other: the second is refused before it locks
// anything.
func TestAgree_Refuses(t *testing.T) {
	tests := []struct {
		name string
		meta map[string]string // as another process left it
		what string
		text string // what the error tells to do
	}{
		{"another number of shards", map[string]string{"layout": "1", "shards": "16"}, "shards", "use the same Config.Shards everywhere"},
		{"an older layout", map[string]string{"layout": "0", "shards": "256"}, "layout", "stop all processes of the other version first"},
		{"a newer layout", map[string]string{"layout": "2", "shards": "256", "more": "x"}, "layout", "stop all processes of the other version first"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			rdb := devtest.Redis(t)
			key := prefixOf(t) + ":meta"
			if err := rdb.HSet(t.Context(), key, tt.meta).Err(); err != nil {
				t.Fatal(err)
			}
			l := lockerOn(t, rdb, reentrant.Config{})
			_, acquired := l.Acquire(t.Context(), "a")
			_, waited := l.Acquire(t.Context(), "a", reentrant.WaitAtMost(time.Minute))
			_, each := l.AcquireEach(t.Context(), []string{"a", "b"})
			_, all := l.AcquireAll(t.Context(), []string{"a", "b"})
			for call, err := range map[string]error{"Check": l.Check(t.Context()), "Acquire": acquired, "Acquire with a wait": waited, "AcquireEach": errors.Join(each...), "AcquireAll": all} {
				var d *reentrant.DisagreementError
				if !errors.As(err, &d) {
					t.Errorf("%s = %v, want a DisagreementError", call, err)
					continue
				}
				if d.What != tt.what || d.Prefix != prefixOf(t) {
					t.Errorf("%s = %+v, want %s under prefix %s", call, d, tt.what, prefixOf(t))
				}
				for _, part := range []string{tt.text, key, tt.meta[tt.what]} {
					if !strings.Contains(err.Error(), part) {
						t.Errorf("%s says %q, want it to say %q", call, err, part)
					}
				}
			}
			if keys := rdb.Keys(t.Context(), prefixOf(t)+":*").Val(); len(keys) != 1 {
				t.Errorf("keys in Redis = %v, want the other's settings alone", keys)
			}
			if got := rdb.HGetAll(t.Context(), key).Val(); len(got) != len(tt.meta) || got[tt.what] != tt.meta[tt.what] {
				t.Errorf("the other's settings = %v, want %v", got, tt.meta)
			}

			// Put right, the same locker works: nobody needs to start again.
			if err := rdb.Del(t.Context(), key).Err(); err != nil {
				t.Fatal(err)
			}
			release(t, acquire(t, l, t.Context(), "a"))
		})
	}
}

// Two lockers of this very version that differ, the second while the first holds a lock.
func TestAgree_TwoLockers(t *testing.T) {
	rdb := devtest.Redis(t)
	first := lockerOn(t, rdb, reentrant.Config{Shards: 8})
	if err := first.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	held := acquire(t, first, t.Context(), "a")
	for name, tt := range map[string]struct {
		cfg  reentrant.Config
		want bool
	}{
		"other shards":       {reentrant.Config{Shards: 9}, false},
		"same":               {reentrant.Config{Shards: 8}, true},
		"other TTL":          {reentrant.Config{Shards: 8, TTL: time.Minute}, true},
		"single-key scripts": {reentrant.Config{Shards: 8, SingleKeyScripts: true}, true},
		"other prefix":       {reentrant.Config{Prefix: prefixOf(t) + "-2", Shards: 9}, true},
	} {
		err := lockerOn(t, rdb, tt.cfg).Check(t.Context())
		if errors.As(err, new(*reentrant.DisagreementError)) == tt.want || (err == nil) != tt.want {
			t.Errorf("%s: Check = %v, want agreement: %v", name, err, tt.want)
		}
	}
	release(t, held)
}

// A version with the same layout may run together with this one, whatever else it writes
// down: that is what makes a rolling upgrade possible.
func TestAgree_SameLayout(t *testing.T) {
	rdb := devtest.Redis(t)
	key := prefixOf(t) + ":meta"
	if err := rdb.HSet(t.Context(), key, "layout", "1", "shards", "256", "version", "v9.9.9", "since", "2030").Err(); err != nil {
		t.Fatal(err)
	}
	l := lockerOn(t, rdb, reentrant.Config{})
	if err := l.Check(t.Context()); err != nil {
		t.Errorf("Check = %v, want nil", err)
	}
	release(t, acquire(t, l, t.Context(), "a"))
	if got := rdb.HGet(t.Context(), key, "version").Val(); got != "v9.9.9" {
		t.Errorf("version = %q, want what the other wrote", got)
	}
}

// Many processes start at once, in two groups that differ: one of the groups, whole, is
// refused.
func TestAgree_StartAtOnce(t *testing.T) {
	rdb := devtest.Redis(t)
	var wg sync.WaitGroup
	errs := make([]error, 20)
	for i := range errs {
		l := lockerOn(t, rdb, reentrant.Config{Shards: 8 + i%2})
		wg.Go(func() {
			if lease, err := l.Acquire(t.Context(), "a"); err != nil {
				errs[i] = err
			} else {
				errs[i] = lease.Release(t.Context())
			}
		})
	}
	wg.Wait()
	refused := [2]int{}
	for i, err := range errs {
		if errors.As(err, new(*reentrant.DisagreementError)) {
			refused[i%2]++
		} else if err != nil {
			t.Error(err)
		}
	}
	if refused != [2]int{10, 0} && refused != [2]int{0, 10} {
		t.Errorf("refused with 8 shards: %d, with 9: %d; want all of one and none of the other", refused[0], refused[1])
	}
}

// What is in the key may not be ours.
func TestAgree_Garbage(t *testing.T) {
	tests := []struct {
		name string
		put  func(ctx context.Context, rdb *redis.Client, key string)
		want []string
	}{
		{"not a number", func(ctx context.Context, rdb *redis.Client, key string) { rdb.HSet(ctx, key, "layout", "first") }, []string{"does not belong to this library", `"first"`}},
		{"empty", func(ctx context.Context, rdb *redis.Client, key string) {
			rdb.HSet(ctx, key, "layout", "1", "shards", "")
		}, []string{"does not belong to this library", "shards", `""`}},
		{"too large", func(ctx context.Context, rdb *redis.Client, key string) {
			rdb.HSet(ctx, key, "shards", "99999999999999999999")
		}, []string{"shards", "99999999999999999999"}},
		{"another type", func(ctx context.Context, rdb *redis.Client, key string) { rdb.Set(ctx, key, "mine", time.Minute) }, []string{"WRONGTYPE"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			rdb := devtest.Redis(t)
			key := prefixOf(t) + ":meta"
			tt.put(t.Context(), rdb, key)
			l := lockerOn(t, rdb, reentrant.Config{})
			_, err := l.Acquire(t.Context(), "a")
			for _, part := range append(tt.want, key) {
				if err == nil || !strings.Contains(err.Error(), part) {
					t.Errorf("Acquire = %v, want it to say %q", err, part)
				}
			}
			if keys := lockKeys(t, rdb, prefixOf(t)); len(keys) != 0 {
				t.Errorf("locked all the same: %v", keys)
			}
		})
	}
}

// Redis that does not answer is no agreement, and is asked again.
func TestAgree_Unreachable(t *testing.T) {
	server := devtest.OwnRedis(t)
	rdb := server.Client()
	server.Kill()
	l := lockerOn(t, rdb, reentrant.Config{Prefix: "p"})
	err := l.Check(t.Context())
	if err == nil || !strings.Contains(err.Error(), "p:meta") || errors.As(err, new(*reentrant.DisagreementError)) {
		t.Errorf("Check = %v, want an error that names the key, and no disagreement", err)
	}
	if _, err := l.Acquire(t.Context(), "a"); err == nil {
		t.Error("Acquire without Redis succeeded")
	}
	server.Restart()
	if err := l.Check(t.Context()); err != nil {
		t.Errorf("Check once Redis is back = %v", err)
	}
	release(t, acquire(t, l, t.Context(), "a"))
}

// The key is compared once. It may be removed, or lost with Redis, while processes run: they
// go on, and the next one to start writes it anew.
func TestAgree_KeyRemoved(t *testing.T) {
	rdb := devtest.Redis(t)
	l := lockerOn(t, rdb, reentrant.Config{})
	held := acquire(t, l, t.Context(), "a")
	key := prefixOf(t) + ":meta"
	if n := rdb.Del(t.Context(), key).Val(); n != 1 {
		t.Fatalf("there is no key %s", key)
	}
	release(t, acquire(t, l, t.Context(), "b"))
	next := lockerOn(t, rdb, reentrant.Config{})
	if _, err := next.Acquire(t.Context(), "a", reentrant.WaitAtMost(0)); !errors.Is(err, reentrant.ErrBusy) {
		t.Errorf("Acquire of a held lock by one that started later = %v, want busy", err)
	}
	if got := rdb.HGetAll(t.Context(), key).Val(); got["layout"] != "1" || got["shards"] != "256" {
		t.Errorf("settings = %v, want layout 1 and 256 shards again", got)
	}
	release(t, held)
}
