package reentrant

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// A verb is a script that serves requests of one kind, many in a run.
type verb[Q, R any] struct {
	script *script
	what   string          // it does, for errors
	name   func(*Q) string // of the lock

	alike   func(a, b *Q) bool              // they may share a run, and what it says of all
	args    func(reqs []Q, ks []keys) []any // of a run for reqs, whose keys are ks
	numbers int                             // in the reply, for each request
	decode  func(ns []int64) (R, error)     // these numbers
	unknown func(err error) R               // there was no answer
}

// failed is the answer about one of several requests that could not be served. The
// server says why if it is asked about this one alone.
const failed = -2

// ask runs a verb for all requests in one round trip, up to perRun of them in a run.
func ask[Q, R any](ctx context.Context, s *RedisStore, v *verb[Q, R], reqs []Q, perRun int) []R {
	ks := make([]keys, len(reqs))
	for i := range ks {
		ks[i] = s.keys.of(v.name(&reqs[i]))
	}
	var room [2]run // nearly always enough
	runs := room[:0]
	for from := 0; from < len(reqs); {
		to := from + 1
		for to < len(reqs) && to-from < perRun && v.alike(&reqs[from], &reqs[to]) {
			to++
		}
		runs = append(runs, run{from: from, to: to, cmd: redis.NewIntSliceCmd(ctx, v.args(reqs[from:to], ks[from:to])...)})
		from = to
	}
	s.exec(ctx, v.script, runs)

	replies := make([]R, len(reqs))
	var alone []int
	for _, r := range runs {
		ns, err := r.numbers(v.numbers * (r.to - r.from))
		for i := r.from; i < r.to; i++ {
			err := err
			if err == nil {
				its := ns[:v.numbers]
				ns = ns[v.numbers:]
				if its[0] == failed && r.to-r.from > 1 {
					alone = append(alone, i)
					continue
				}
				replies[i], err = v.decode(its)
			}
			if err != nil {
				replies[i] = v.unknown(fmt.Errorf("%s lock %q: %w", v.what, v.name(&reqs[i]), err))
			}
		}
	}
	if len(alone) > 0 {
		again := make([]Q, len(alone))
		for j, i := range alone {
			again[j] = reqs[i]
		}
		for j, reply := range ask(ctx, s, v, again, 1) {
			replies[alone[j]] = reply
		}
	}
	return replies
}

func (s *RedisStore) acquireVerb() verb[AcquireRequest, AcquireReply] {
	sc := newScript("acquire")
	return verb[AcquireRequest, AcquireReply]{
		script: sc,
		what:   "acquire",
		name:   func(r *AcquireRequest) string { return r.Name },
		alike: func(a, b *AcquireRequest) bool {
			return a.TTL == b.TTL && a.Seat == b.Seat && a.Depth == b.Depth && a.FenceAtLeast == b.FenceAtLeast
		},
		args: func(reqs []AcquireRequest, ks []keys) []any {
			first := &reqs[0]
			args := allKeys(sc.args(3*len(ks), 4+len(reqs)), ks)
			args = append(args, s.milliseconds(first.TTL), first.Seat.Milliseconds(), first.Depth, first.FenceAtLeast)
			for i := range reqs {
				args = append(args, &reqs[i].Owner)
			}
			return args
		},
		numbers: 3,
		decode: func(ns []int64) (AcquireReply, error) {
			switch answer, fence, left := ns[0], ns[1], ns[2]; {
			case answer == 1 && fence > 0:
				return AcquireReply{Answer: Held, Fence: fence}, nil
			case answer == 0 && fence >= 0 && left >= 0:
				return AcquireReply{Answer: Busy, Fence: fence, Left: time.Duration(left) * time.Millisecond}, nil
			case answer == -1:
				return AcquireReply{Answer: Gone}, nil
			}
			return AcquireReply{}, fmt.Errorf("unexpected reply %d", ns)
		},
		unknown: func(err error) AcquireReply { return AcquireReply{Err: err} },
	}
}

func (s *RedisStore) renewVerb() verb[RenewRequest, HoldReply] {
	sc := newScript("renew")
	return verb[RenewRequest, HoldReply]{
		script: sc,
		what:   "renew",
		name:   func(r *RenewRequest) string { return r.Name },
		alike:  func(a, b *RenewRequest) bool { return a.TTL == b.TTL },
		args: func(reqs []RenewRequest, ks []keys) []any {
			args := sc.args(len(ks), 1+2*len(reqs))
			for i := range ks {
				args = append(args, &ks[i].lock)
			}
			args = append(args, s.milliseconds(reqs[0].TTL))
			for i := range reqs {
				args = append(args, &reqs[i].Owner, &reqs[i].Fence)
			}
			return args
		},
		numbers: 1,
		decode:  decodeHold,
		unknown: func(err error) HoldReply { return HoldReply{Err: err} },
	}
}

func (s *RedisStore) releaseVerb() verb[ReleaseRequest, HoldReply] {
	sc := newScript("release")
	return verb[ReleaseRequest, HoldReply]{
		script: sc,
		what:   "release",
		name:   func(r *ReleaseRequest) string { return r.Name },
		alike: func(a, b *ReleaseRequest) bool {
			return a.TTL == b.TTL && a.Leave == b.Leave && a.GiveUp == b.GiveUp
		},
		args: func(reqs []ReleaseRequest, ks []keys) []any {
			first := &reqs[0]
			giveUp := 0
			if first.GiveUp {
				giveUp = 1
			}
			args := allKeys(sc.args(3*len(ks), 5+len(reqs)), ks)
			args = append(args, s.milliseconds(first.TTL), handoverMS, &s.keys.wake, first.Leave, giveUp)
			for i := range reqs {
				args = append(args, &reqs[i].Owner)
			}
			return args
		},
		numbers: 1,
		decode:  decodeHold,
		unknown: func(err error) HoldReply { return HoldReply{Err: err} },
	}
}

func decodeHold(ns []int64) (HoldReply, error) {
	switch ns[0] {
	case 1:
		return HoldReply{Answer: Held}, nil
	case 0:
		return HoldReply{Answer: Gone}, nil
	case -1:
		return HoldReply{Answer: Busy}, nil
	}
	return HoldReply{}, fmt.Errorf("unexpected reply %d", ns)
}

// allKeys adds the keys of some locks, in the order in which scripts want them.
func allKeys(args []any, ks []keys) []any {
	for i := range ks {
		args = append(args, &ks[i].lock)
	}
	for i := range ks {
		args = append(args, &ks[i].wait)
	}
	for i := range ks {
		args = append(args, ks[i].fence)
	}
	return args
}

// handoverMS is HandoverTTL as an argument.
var handoverMS any = HandoverTTL.Milliseconds()

// milliseconds returns a TTL as an argument.
func (s *RedisStore) milliseconds(ttl time.Duration) any {
	if ttl == s.ttl {
		return s.ttlMS // made once
	}
	return ttl.Milliseconds()
}
