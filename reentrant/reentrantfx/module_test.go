package reentrantfx_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/onceward/onceward/internal/devstack/devtest"
	"github.com/onceward/onceward/reentrant"
	"github.com/onceward/onceward/reentrant/reentrantfx"
	"github.com/redis/go-redis/v9"
	"go.uber.org/fx"
	"go.uber.org/fx/fxtest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// app is the rest of an application around the module.
func app(rdb redis.UniversalClient, cfg reentrant.Config, more ...fx.Option) fx.Option {
	return fx.Options(append(more,
		fx.NopLogger,
		reentrantfx.Module,
		fx.Supply(fx.Annotate(rdb, fx.As(new(redis.UniversalClient))), cfg),
	)...)
}

func TestModule_Graph(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer rdb.Close()
	if err := fx.ValidateApp(app(rdb, reentrant.Config{}, fx.Invoke(func(*reentrant.Locker) {}))); err != nil {
		t.Error(err)
	}
}

func TestModule_StartStop(t *testing.T) {
	var locker *reentrant.Locker
	a := fxtest.New(t, app(devtest.Redis(t), reentrant.Config{Prefix: "fx"}, fx.Populate(&locker)))
	a.RequireStart()
	lease, err := locker.Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	a.RequireStop()
	if got := context.Cause(lease.Context()); !errors.Is(got, reentrant.ErrClosed) {
		t.Errorf("cause after the stop = %v, want %v", got, reentrant.ErrClosed)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestModule_RedisUnreachable(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
	defer rdb.Close()
	a := fx.New(app(rdb, reentrant.Config{}, fx.Invoke(func(*reentrant.Locker) {})))
	if err := a.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("Start = %v, want an error that names the server", err)
	}
}

func TestModule_OthersLockDifferently(t *testing.T) {
	rdb := devtest.Redis(t)
	defer rdb.Del(context.WithoutCancel(t.Context()), "fx-other:meta")
	others, err := reentrant.New(rdb, reentrant.Config{Prefix: "fx-other"})
	if err != nil {
		t.Fatal(err)
	}
	if err := others.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	a := fx.New(app(rdb, reentrant.Config{Prefix: "fx-other", Shards: 7}, fx.Invoke(func(*reentrant.Locker) {})))
	var no *reentrant.DisagreementError
	if err := a.Start(t.Context()); !errors.As(err, &no) || no.Theirs != 256 || no.Ours != 7 {
		t.Errorf("Start = %v, want a disagreement about 256 and 7 shards", err)
	}
}

func TestModule_BadConfig(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer rdb.Close()
	a := fx.New(app(rdb, reentrant.Config{TTL: 1}, fx.Invoke(func(*reentrant.Locker) {})))
	if err := a.Err(); err == nil || !strings.Contains(err.Error(), "TTL is 1ns, must be at least") {
		t.Errorf("New = %v, want the mistake in the configuration", err)
	}
}
