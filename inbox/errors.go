package inbox

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

var (
	// ErrSwallowed is matched if a handler returned nil and left a transaction that
	// cannot be committed: one of its statements had failed, and it hid the error.
	// (Of a single message, it may also have ended the transaction by SQL.)
	ErrSwallowed = errors.New("inbox: handler hid the error of a statement")

	// ErrIdle is matched if the connection was lost in a handler that ran for
	// longer than [Config.MaxHold]: the server had ended its transaction.
	ErrIdle = errors.New("inbox: handler left its transaction idle for too long")

	// ErrEnded is matched if a handler committed or rolled back the transaction.
	ErrEnded = errors.New("inbox: handler ended the transaction, which is not its own")

	// ErrUnknown is matched if COMMIT was sent and its answer lost. The message may
	// be applied or not; applying it again gives [Duplicate] or does it.
	ErrUnknown = errors.New("inbox: outcome of COMMIT is unknown")
)

// Each error says by a method what is to be done: Permanent() bool (it can never
// succeed), Uncharged() bool (not the message's fault: do not count the attempt),
// RetryIn() time.Duration (when).

// An IdentityError says which part of a [Message] cannot be used. No statement
// was sent.
type IdentityError struct {
	Field   string // of Message
	Problem string
}

func (e *IdentityError) Error() string   { return "inbox: Message." + e.Field + " " + e.Problem }
func (e *IdentityError) Permanent() bool { return true }

// A ConflictError says that the ID belongs to another message.
type ConflictError struct {
	ID     string
	Given  [16]byte // fingerprint of the message's digest
	Stored [16]byte // fingerprint of the digest that came first
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("inbox: message %q was decided with another digest (fingerprint %x, now %x)", e.ID, e.Stored, e.Given)
}
func (e *ConflictError) Permanent() bool { return true }

// A BusyError says that another transaction held the resource or the ID for all
// of [Config.LockTimeout].
type BusyError struct {
	ID       string
	Resource string // that is held; empty if it is the ID, or not known

	after time.Duration
}

func (e *BusyError) Error() string {
	if e.Resource != "" {
		return fmt.Sprintf("inbox: resource %q of message %q is held by another transaction", e.Resource, e.ID)
	}
	return fmt.Sprintf("inbox: message %q, or one claimed with it, is held by another transaction", e.ID)
}
func (e *BusyError) Uncharged() bool { return true }

// RetryIn returns how long to wait: as long as was waited in vain.
func (e *BusyError) RetryIn() time.Duration { return e.after }

// A StaleError says that the lock grant is not the newest any more, or so old that
// nobody knows: see [Config.FenceRetention]. The next token has to be greater than Stored.
type StaleError struct {
	ID       string
	Resource string
	Token    int64 // of the message
	Stored   int64 // the greatest one seen; of one that is too old, the time of the database

	old bool
}

func (e *StaleError) Error() string {
	if e.old {
		return fmt.Sprintf("inbox: token %d of resource %q for message %q is too old, the time is %d", e.Token, e.Resource, e.ID, e.Stored)
	}
	return fmt.Sprintf("inbox: token %d of resource %q for message %q is stale, %d has been seen", e.Token, e.Resource, e.ID, e.Stored)
}
func (e *StaleError) Uncharged() bool { return true }

// An AgainError says why the message has to be applied again.
type AgainError struct {
	ID  string
	Err error
}

func (e *AgainError) Error() string {
	return fmt.Sprintf("inbox: apply message %q again: %v", e.ID, e.Err)
}
func (e *AgainError) Unwrap() error   { return e.Err }
func (e *AgainError) Uncharged() bool { return true }

// A DeadError says that a message was given up. Its dead letter is committed, and further
// deliveries are duplicates, until [Inbox.Redrive] or [Inbox.Revive].
type DeadError struct {
	ID       string
	Attempts int   // failures that were charged; 0 if it was never handled
	Err      error // the last one
}

func (e *DeadError) Error() string {
	return fmt.Sprintf("inbox: message %q was given up after %d attempts: %v", e.ID, e.Attempts, e.Err)
}
func (e *DeadError) Unwrap() error { return e.Err }

// Skipped says that the message is decided: nothing is left to do for who delivers it.
func (e *DeadError) Skipped() bool { return true }

// A PanicError is what a panic of a handler becomes.
type PanicError struct {
	Value any    // what was panicked with
	Stack []byte // of the goroutine that panicked
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// Unwrap returns the value of the panic if it was an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// A class is what an error of a handler says of itself, by its methods.
type class int

const (
	classNone class = iota // it says nothing
	classSkip
	classStop
	classPermanent
	classUncharged
)

// skipped reports whether a handler's error means that it chose not to act.
func skipped(err error) bool { return classOf(err) == classSkip }

// classOf returns the class of err. Of several in one error, the outermost counts.
func classOf(err error) class {
	if e, ok := err.(interface{ Skipped() bool }); ok && e.Skipped() {
		return classSkip
	}
	if e, ok := err.(interface{ Stopped() bool }); ok && e.Stopped() {
		return classStop
	}
	if e, ok := err.(interface{ Permanent() bool }); ok && e.Permanent() {
		return classPermanent
	}
	if e, ok := err.(interface{ Uncharged() bool }); ok && e.Uncharged() {
		return classUncharged
	}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		return classOf(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			if c := classOf(err); c != classNone {
				return c
			}
		}
	}
	return classNone
}

// SQLSTATE codes that decide something here.
const (
	lockNotAvailable     = "55P03"
	serializationFailure = "40001"
	deadlockDetected     = "40P01"
	inFailedTransaction  = "25P02"
	noTransaction        = "25P01"
	noSavepoint          = "3B001"
	idleInTransaction    = "25P03"
	cachedPlan           = "0A000" // among others
	noStatement          = "26000"
)

// state returns the SQLSTATE of err, or "". All drivers for PostgreSQL have it.
func state(err error) string {
	if e, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err); ok {
		return e.SQLState()
	}
	return ""
}

// collided reports whether err is the collision of two transactions, which the
// server solved by ending this one.
func collided(err error) bool {
	s := state(err)
	return s == serializationFailure || s == deadlockDetected
}

// disconnected reports whether err is about the way to the server, or the server
// itself, rather than about a statement. lib/pq answers [driver.ErrBadConn] to
// every FATAL message of the server, and so hides its SQLSTATE.
func disconnected(err error) bool {
	_, isNet := errors.AsType[net.Error](err)
	switch s := state(err); {
	case s != "":
		// 25P03 idle for too long, 08 connection, 53 resources, 57P0x shutdown and crash, 58 system, XX internal
		return s == idleInTransaction || strings.HasPrefix(s, "57P0") || strings.Contains(" 08 53 58 XX ", " "+s[:min(len(s), 2)]+" ")
	case errors.Is(err, context.DeadlineExceeded): // is a net.Error, too
		return false
	}
	return isNet || errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// ended reports whether err means that there is no transaction any more, on a
// connection that works.
func ended(err error) bool {
	s := state(err)
	return errors.Is(err, sql.ErrTxDone) || s == noTransaction || s == noSavepoint
}
