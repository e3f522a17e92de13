package reentrant_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/devstack/redistest"
	"github.com/onceward/onceward/reentrant"
	"github.com/onceward/onceward/reentrant/locktest"
)

// One master, two replicas, three sentinels; the client's defaults.
func TestSentinel(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t)
	t.Run("contract", func(t *testing.T) {
		rdb := s.Client(nil)
		locktest.Run(t, func(t *testing.T) reentrant.Store { return storeOn(t, rdb) })
	})
	t.Run("the master dies", func(t *testing.T) {
		newLocker := func() *reentrant.Locker {
			return lockerOn(t, s.Client(nil), reentrant.Config{TTL: failoverTTL, Logger: slog.New(slog.DiscardHandler)})
		}
		s.SetDownAfter(time.Second)
		survive(t, newLocker, map[string]bool{"a": true, "b": true, "c": true, "d": true}, map[string]bool{"e": true}, s.Master.Kill)
	})
}
