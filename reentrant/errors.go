package reentrant

import (
	"errors"
	"fmt"
	"time"

	"github.com/onceward/onceward/watchdog"
)

var (
	// ErrName: the name of a lock is not one.
	ErrName = errors.New("reentrant: bad lock name")
	// ErrBusy: somebody else holds the lock. Errors that match it are
	// [*BusyError].
	ErrBusy = errors.New("reentrant: lock is busy")
	// ErrLost: the lock may be somebody else's. Errors that match it are
	// [*LostError].
	ErrLost = errors.New("reentrant: lock lost")
	// ErrReleased: the lock was given back by its holder.
	ErrReleased error = &endError{"reentrant: lock released"}
	// ErrClosed: the Locker was closed.
	ErrClosed error = &endError{"reentrant: locker closed"}
)

// An endError is the ordinary end of a lock. Work that is cut short by it has not
// failed.
type endError struct{ text string }

func (e *endError) Error() string { return e.text }

// Uncharged says that whoever got the error is not at fault.
func (e *endError) Uncharged() bool { return true }

// A BusyError says that somebody else holds the lock. It matches [ErrBusy].
type BusyError struct {
	Name string
	Left time.Duration // of the lease in the way, if it is not renewed; 0 if not known
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("lock %q is busy, its lease has %v left", e.Name, e.Left.Round(time.Millisecond))
}

// Is reports whether target is [ErrBusy].
func (e *BusyError) Is(target error) bool { return target == ErrBusy }

// Uncharged says that whoever got the error is not at fault.
func (e *BusyError) Uncharged() bool { return true }

// RetryIn proposes when to try again: the holder will most likely be done long
// before its lease ends.
func (e *BusyError) RetryIn() time.Duration { return min(e.Left, time.Second) }

// A Reason says why a lock was lost.
type Reason = watchdog.Reason

// The reasons of a [LostError].
const (
	Expired     = watchdog.Expired     // its time was over
	TakenOver   = watchdog.TakenOver   // somebody else holds it
	Unreachable = watchdog.Unreachable // no renewal got an answer in time
	TooLong     = watchdog.TooLong     // Config.MaxHold was over
)

// A LostError says that a lock may be somebody else's by now. It matches
// [ErrLost].
type LostError struct {
	Name   string
	Fence  int64 // of the grant that was lost
	Reason Reason
}

func (e *LostError) Error() string {
	return fmt.Sprintf("lock %q with fence %d lost: %v", e.Name, e.Fence, e.Reason)
}

// Is reports whether target is [ErrLost].
func (e *LostError) Is(target error) bool { return target == ErrLost }

// Uncharged says that whoever got the error is not at fault.
func (e *LostError) Uncharged() bool { return true }
