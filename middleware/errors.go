package middleware

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onceward/onceward/inbox"
)

// A Class says what an error of a handler means for its message.
type Class int

const (
	// Decided: nothing is left to do; the offset may be committed.
	Decided Class = iota
	// Retry: the message failed and is tried again after a backoff. It is the
	// class of every error that does not say otherwise, and it is charged as an
	// attempt.
	Retry
	// Uncharged: the message was not at fault (its key was busy, its lease was
	// lost, the infrastructure failed, the process shuts down). It is tried
	// again and no attempt is counted.
	Uncharged
	// Fatal: the message can never succeed.
	Fatal
	// Halt: the consumer must stop.
	Halt
)

func (c Class) String() string {
	switch c {
	case Decided:
		return "decided"
	case Retry:
		return "retry"
	case Uncharged:
		return "uncharged"
	case Fatal:
		return "fatal"
	case Halt:
		return "halt"
	}
	return fmt.Sprintf("Class(%d)", int(c))
}

// Classify returns the class of an error that a [Handler] returned.
//
// Other packages take part without importing this one: an error in the chain
// with the method Uncharged() bool, Permanent() bool, Skipped() bool or
// Stopped() bool that answers true has that class. The outermost one wins. The
// end of a context is nobody's fault, so it is [Uncharged], unless a class
// around it says otherwise.
func Classify(err error) Class {
	if err == nil {
		return Decided
	}
	class := Retry
	walk(err, func(err error) bool {
		switch e := err.(type) {
		case interface{ Skipped() bool }:
			if e.Skipped() {
				class = Decided
				return true
			}
		case interface{ Stopped() bool }:
			if e.Stopped() {
				class = Halt
				return true
			}
		case interface{ Permanent() bool }:
			if e.Permanent() {
				class = Fatal
				return true
			}
		case interface{ Uncharged() bool }:
			if e.Uncharged() {
				class = Uncharged
				return true
			}
		}
		return false
	})
	if class == Retry && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) {
		return Uncharged
	}
	return class
}

// RetryDelay returns how long the error asks to wait before the next try, and
// whether it asks at all. Errors ask with a method RetryIn() time.Duration.
func RetryDelay(err error) (time.Duration, bool) {
	var e interface{ RetryIn() time.Duration }
	if errors.As(err, &e) {
		return e.RetryIn(), true
	}
	return 0, false
}

// walk visits the tree of err, outermost first, until visit returns true.
func walk(err error, visit func(error) bool) bool {
	for err != nil {
		if visit(err) {
			return true
		}
		switch e := err.(type) {
		case interface{ Unwrap() error }:
			err = e.Unwrap()
		case interface{ Unwrap() []error }:
			for _, err := range e.Unwrap() {
				if walk(err, visit) {
					return true
				}
			}
			return false
		default:
			return false
		}
	}
	return false
}

// Permanent marks err: the message can never succeed, so it is not retried.
func Permanent(err error) error { return &permanentError{err} }

type permanentError struct{ err error }

func (e *permanentError) Error() string   { return e.err.Error() }
func (e *permanentError) Unwrap() error   { return e.err }
func (e *permanentError) Permanent() bool { return true }

// RetryAfter marks err: the message is tried again after d instead of after the
// consumer's own backoff. The attempt is charged.
func RetryAfter(d time.Duration, err error) error { return &retryAfterError{err, d} }

type retryAfterError struct {
	err   error
	delay time.Duration
}

func (e *retryAfterError) Error() string          { return e.err.Error() }
func (e *retryAfterError) Unwrap() error          { return e.err }
func (e *retryAfterError) RetryIn() time.Duration { return e.delay }

// Skip is returned by a handler that decides not to act on a message. The
// message is decided: with an inbox its row is committed, together with what
// the handler wrote before it returned.
func Skip(reason string) error { return &skipError{reason} }

type skipError struct{ reason string }

func (e *skipError) Error() string { return "skipped: " + e.reason }
func (e *skipError) Skipped() bool { return true }

// Stop marks err: the consumer drains, stops, and its Run returns err. The
// message stays undecided.
func Stop(err error) error { return &stopError{err} }

type stopError struct{ err error }

func (e *stopError) Error() string { return e.err.Error() }
func (e *stopError) Unwrap() error { return e.err }
func (e *stopError) Stopped() bool { return true }

// Busy marks err: something that the message needs is held by somebody else.
// The message is tried again after d, and no attempt is charged.
func Busy(d time.Duration, err error) error { return &busyError{err, d} }

type busyError struct {
	err   error
	delay time.Duration
}

func (e *busyError) Error() string          { return e.err.Error() }
func (e *busyError) Unwrap() error          { return e.err }
func (e *busyError) Uncharged() bool        { return true }
func (e *busyError) RetryIn() time.Duration { return e.delay }

// A PanicError is what a panic of a handler becomes: the same, whoever caught it.
type PanicError = inbox.PanicError
