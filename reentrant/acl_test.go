package reentrant_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/devstack/devtest"
	"github.com/onceward/onceward/reentrant"
	"github.com/redis/go-redis/v9"
)

// The rights that a Redis user needs, for the prefix "onceward":
//
//	ACL SETUSER onceward on >SECRET resetkeys ~onceward:* resetchannels &onceward:wake:* nocommands
//		+evalsha +eval +time +get +set +del +exists +pttl +pexpire
//		+hget +hmget +hset +hsetnx +hdel +hincrby +hgetall
//		+subscribe +publish +ping
//		+scan
//
// in a cluster also +cluster|slots +command, on every node. The last line is for List. PING keeps
// the subscription alive. Without PUBLISH and the channels nothing fails but
// the wait for a busy lock, at once.
var aclCommands = []string{
	"evalsha", "eval", "time", "get", "set", "del", "exists", "pttl", "pexpire",
	"hget", "hmget", "hset", "hsetnx", "hdel", "hincrby", "hgetall",
	"subscribe", "publish", "ping", "scan",
}

// notMissed are rights without which the exercise below succeeds all the same: news of
// a hand-over is only a hint, and the subscription is asked for life signs after seconds.
var notMissed = []string{"publish", "ping"}

const aclPrefix = "onceward"

// setUser gives user "app" these rights and no others.
func setUser(t *testing.T, admin *redis.Client, rules ...string) {
	t.Helper()
	args := []any{"ACL", "SETUSER", "app", "reset", "on", ">secret"}
	for _, r := range rules {
		args = append(args, r)
	}
	if err := admin.Do(t.Context(), args...).Err(); err != nil {
		t.Fatal(err)
	}
}

func minimum(without string, more ...string) []string {
	rules := append([]string{"~" + aclPrefix + ":*", "&" + aclPrefix + ":wake:*"}, more...)
	for _, c := range aclCommands {
		if c != without {
			rules = append(rules, "+"+c)
		}
	}
	return rules
}

// asApp returns a client of that user.
func asApp(t *testing.T, addr string) *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: addr, Username: "app", Password: "secret"})
	t.Cleanup(func() { c.Close() })
	return c
}

// lockers makes lockers that are closed when the test ends. It cleans nothing up: a user
// with few rights could not.
func lockers(t *testing.T, rdb redis.UniversalClient, cfg reentrant.Config, n int) []*reentrant.Locker {
	t.Helper()
	cfg.Prefix, cfg.Logger = aclPrefix, slog.New(slog.DiscardHandler)
	all := make([]*reentrant.Locker, n)
	for i := range all {
		l, err := reentrant.New(rdb, cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		all[i] = l
	}
	return all
}

// exercise uses all that a lock can do.
func exercise(t *testing.T, rdb redis.UniversalClient) error {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const ttl = 600 * time.Millisecond
	both := lockers(t, rdb, reentrant.Config{TTL: ttl}, 2)
	l, other := both[0], both[1]
	if err := l.Check(ctx); err != nil {
		return err
	}

	// One lock, re-entered, busy for others, with a hint, renewed.
	outer, err := l.Acquire(ctx, "a")
	if err != nil {
		return err
	}
	inner, err := l.Acquire(outer.Context(), "a")
	if err != nil {
		return err
	}
	hints := reentrant.FenceHints(map[string]int64{"a": outer.Fence() + 1_000_000})
	if _, err := other.Acquire(ctx, "a", reentrant.WaitAtMost(0), hints); !errors.Is(err, reentrant.ErrBusy) {
		return fmt.Errorf("a busy lock: %w", err)
	}
	start := time.Now()
	for v := (&vigil{Lease: outer}); v.renewed(ttl).Before(start); time.Sleep(time.Millisecond) {
		if err := context.Cause(outer.Context()); err != nil {
			return err
		}
	}
	if err := inner.Release(ctx); err != nil {
		return err
	}

	// Waited for, given up, waited for again, handed over.
	wait := func(ctx context.Context) chan error {
		got := make(chan error, 1)
		go func() {
			lease, err := other.Acquire(ctx, "a")
			if err == nil {
				err = lease.Release(ctx)
			}
			got <- err
		}()
		return got
	}
	waiting := func(n int, got chan error) error {
		for {
			info, err := l.Inspector().Inspect(ctx, "a")
			if err != nil || len(info.Waiting) == n {
				return err
			}
			select {
			case err := <-got:
				return fmt.Errorf("who was to wait: %w", err)
			case <-time.After(time.Millisecond):
			}
		}
	}
	brief, giveUp := context.WithCancel(ctx)
	defer giveUp()
	got := wait(brief)
	if err := waiting(1, got); err != nil {
		return err
	}
	giveUp()
	if err := <-got; !errors.Is(err, context.Canceled) {
		return fmt.Errorf("who gave up: %w", err)
	}
	if err := waiting(0, nil); err != nil {
		return err
	}
	got = wait(ctx)
	if err := waiting(1, got); err != nil {
		return err
	}
	if err := outer.Release(ctx); err != nil {
		return err
	}
	if err := <-got; err != nil {
		return fmt.Errorf("who waited: %w", err)
	}

	// Several at once, looked at, and broken.
	leases, errs := l.AcquireEach(ctx, []string{"b", "c", "d"})
	if err := errors.Join(errs...); err != nil {
		return err
	}
	n := 0
	for _, err := range l.Inspector().List(ctx, "") {
		if err != nil {
			return err
		}
		n++
	}
	if n != len(leases) {
		return fmt.Errorf("%d locks listed, want %d", n, len(leases))
	}
	if err := l.Inspector().Break(ctx, "b", leases[0].Fence()); err != nil {
		return err
	}
	<-leases[0].Context().Done()
	if err := errors.Join(l.ReleaseEach(ctx, leases[1:])...); err != nil {
		return err
	}
	return nil
}

// Exactly these rights: with them all works, and without any one of them something does
// not.
func TestACL_Minimum(t *testing.T) {
	t.Parallel()
	server := devtest.OwnRedis(t)
	admin := server.Client()
	setUser(t, admin, minimum("")...)
	if err := exercise(t, asApp(t, server.Addr)); err != nil {
		t.Fatalf("with the minimum: %v", err)
	}
	if err := asApp(t, server.Addr).Get(t.Context(), "other:key").Err(); !isRefusal(err) {
		t.Errorf("a key of somebody else = %v, want a refusal", err)
	}
	for _, command := range aclCommands {
		admin.FlushAll(t.Context())
		admin.ScriptFlush(t.Context())
		setUser(t, admin, minimum(command)...)
		err := exercise(t, asApp(t, server.Addr))
		switch missed := !slices.Contains(notMissed, command); {
		case missed && !isRefusal(err):
			t.Errorf("without %s: %v, want a refusal", command, err)
		case !missed && err != nil:
			t.Errorf("without %s: %v", command, err)
		}
		// Whatever was refused, and when: no lock stays for ever.
		for _, key := range lockKeys(t, admin, aclPrefix) {
			if ttl := admin.PTTL(t.Context(), key).Val(); ttl == -1 {
				t.Errorf("without %s: %s has no end", command, key)
			}
		}
	}
}

func isRefusal(err error) bool {
	return err != nil && reentrant.Refused(err) && (strings.Contains(err.Error(), "NOPERM") || strings.Contains(err.Error(), "can't run this command"))
}

// Without rights to the channels a lock is handed over all the same; who waits finds out
// when it asks next.
func TestACL_NoChannels(t *testing.T) {
	t.Parallel()
	server := devtest.OwnRedis(t)
	admin := server.Client()
	setUser(t, admin, append(minimum(""), "resetchannels")...)
	l := lockers(t, asApp(t, server.Addr), reentrant.Config{}, 1)[0]
	other := lockers(t, server.Client(), reentrant.Config{}, 1)[0] // may do all
	lease := acquire(t, l, t.Context(), "a")
	got := make(chan error, 1)
	go func() {
		lease, err := other.Acquire(t.Context(), "a")
		if err == nil {
			err = lease.Release(t.Context())
		}
		got <- err
	}()
	until(t, "somebody waits", func() error {
		info, err := l.Inspector().Inspect(t.Context(), "a")
		if err == nil && len(info.Waiting) == 0 {
			err = errors.New("nobody")
		}
		return err
	})
	release(t, lease)
	if err := <-got; err != nil {
		t.Errorf("who waited: %v", err)
	}

	// Who may not listen is told so, in place of a wait.
	held := acquire(t, other, t.Context(), "a")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := l.Acquire(ctx, "a"); !isRefusal(err) || ctx.Err() != nil {
		t.Errorf("wait without the right to listen = %v, want a refusal at once", err)
	}
	release(t, held)
}

// A refusal ends an acquire at once, also one that waits already.
func TestACL_ScriptsDenied(t *testing.T) {
	t.Parallel()
	server := devtest.OwnRedis(t)
	admin := server.Client()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, denied := range [][]string{{"-eval"}, {"-evalsha"}, {"-eval", "-evalsha"}} {
		admin.ScriptFlush(t.Context())
		setUser(t, admin, append(minimum(""), denied...)...)
		l := lockers(t, asApp(t, server.Addr), reentrant.Config{}, 1)[0]
		if _, err := l.Acquire(ctx, "a"); !isRefusal(err) || ctx.Err() != nil {
			t.Errorf("%v: Acquire = %v, want a refusal at once", denied, err)
		}
		_, errs := l.AcquireEach(ctx, []string{"a", "b"})
		for _, err := range errs {
			if !isRefusal(err) {
				t.Errorf("%v: AcquireEach = %v, want a refusal", denied, err)
			}
		}
	}

	setUser(t, admin, minimum("")...)
	l := lockers(t, asApp(t, server.Addr), reentrant.Config{}, 1)[0]
	other := lockers(t, server.Client(), reentrant.Config{}, 1)[0]
	held := acquire(t, other, t.Context(), "a")
	got := make(chan error, 1)
	go func() {
		_, err := l.Acquire(ctx, "a")
		got <- err
	}()
	until(t, "somebody waits", func() error {
		info, err := other.Inspector().Inspect(t.Context(), "a")
		if err == nil && len(info.Waiting) == 0 {
			err = errors.New("nobody")
		}
		return err
	})
	setUser(t, admin, append(minimum(""), "-eval", "-evalsha")...)
	if err := <-got; !isRefusal(err) || ctx.Err() != nil {
		t.Errorf("who waits and loses its rights: %v, want a refusal", err)
	}
	release(t, held)
}
