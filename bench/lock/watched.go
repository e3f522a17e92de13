package main

import (
	"context"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward/reentrant"
)

// watched is a store that notes how late leases are renewed. The names of the locks
// are made by its name method.
type watched struct {
	reentrant.Store
	epoch  time.Time
	leases []watchedLease

	renewed, failed atomic.Int64
}

// watchedLease is what is known of one lease, in nanoseconds.
type watchedLease struct {
	last atomic.Int64 // when the request left, since the epoch, by which it is held
	late atomic.Int64 // the worst so far
}

func watch(s reentrant.Store, leases int) *watched {
	return &watched{Store: s, epoch: time.Now(), leases: make([]watchedLease, leases)}
}

func (*watched) name(i int) string { return "lease:" + strconv.Itoa(1000000+i) }

func (w *watched) of(name string) *watchedLease {
	i, err := strconv.Atoi(strings.TrimPrefix(name, "lease:"))
	if err != nil {
		panic(err) // all names are ours
	}
	return &w.leases[i-1000000]
}

// Acquire implements [reentrant.Store].
func (w *watched) Acquire(ctx context.Context, reqs []reentrant.AcquireRequest) []reentrant.AcquireReply {
	sent := time.Since(w.epoch)
	replies := w.Store.Acquire(ctx, reqs)
	for i, r := range replies {
		if r.Answer == reentrant.Held {
			w.of(reqs[i].Name).last.Store(int64(sent))
		}
	}
	return replies
}

// Renew implements [reentrant.Store].
func (w *watched) Renew(ctx context.Context, reqs []reentrant.RenewRequest) []reentrant.HoldReply {
	sent := time.Since(w.epoch)
	for _, r := range reqs {
		lease := w.of(r.Name)
		due := lease.last.Load() + int64(r.TTL/3)
		if late := int64(sent) - due; late > lease.late.Load() {
			lease.late.Store(late) // no two renewals of one lease at once
		}
	}
	replies := w.Store.Renew(ctx, reqs)
	for i, r := range replies {
		if r.Answer != reentrant.Held {
			w.failed.Add(1)
			continue
		}
		w.renewed.Add(1)
		w.of(reqs[i].Name).last.Store(int64(sent))
	}
	return replies
}

// latest returns the worst lateness, in milliseconds, of the leases that are wanted.
func (w *watched) latest(wanted func(i int) bool) float64 {
	var worst int64
	for i := range w.leases {
		if wanted(i) {
			worst = max(worst, w.leases[i].late.Load())
		}
	}
	return float64(worst) / 1e6
}
