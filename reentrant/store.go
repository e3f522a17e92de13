package reentrant

import (
	"context"
	"time"
)

// A store keeps locks. Each method serves a slice and answers for each element,
// in order; an error is about that element alone and means that the outcome is
// unknown. Every call may take effect twice or late, and must be safe then.
type store interface {
	// acquire takes a lock, or enters one deeper.
	acquire(ctx context.Context, reqs []acquireRequest) []acquireReply
	// renew makes leases last for another TTL.
	renew(ctx context.Context, reqs []renewRequest) []holdReply
	// release leaves a hold; with leave 0 it frees the lock.
	release(ctx context.Context, reqs []releaseRequest) []holdReply
	// group names the failure domain of a lock: leases of one group are renewed
	// together.
	group(name string) string
}

type acquireRequest struct {
	name  string
	owner string
	depth int // wanted
	ttl   time.Duration
	hint  int64 // the fence must be at least this
}

type acquireReply struct {
	answer answer
	fence  int64         // if held
	left   time.Duration // of the lease in the way, if busy
	err    error
}

type renewRequest struct {
	name  string
	owner string
	fence int64
	ttl   time.Duration
}

type releaseRequest struct {
	name  string
	owner string
	leave int // depth to leave behind
	ttl   time.Duration
}

type holdReply struct {
	answer answer
	err    error
}

// An answer of a store about one lock. With an error it is unknown.
type answer int

const (
	unknown answer = iota
	isHeld         // by the owner that asked
	isBusy         // held by another owner
	isGone         // held by nobody (of a deeper acquire: not by the owner)
)
