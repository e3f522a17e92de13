package consumer

import (
	"errors"
	"fmt"
)

var (
	// ErrRevoked is the cause of a handler's context that ended because the
	// partition of one of its messages was taken away.
	ErrRevoked = errors.New("consumer: partition revoked")

	// ErrShutdown is the cause of a handler's context that ended because the
	// consumer stops and its drain timeout has passed.
	ErrShutdown = errors.New("consumer: shutting down")

	// ErrStarted is returned by [Consumer.Run] if it was called before.
	ErrStarted = errors.New("consumer: already started")

	// ErrNotRunning is returned by [Consumer.Ready] before and after Run.
	ErrNotRunning = errors.New("consumer: not running")

	// ErrAbandoned is returned by [Consumer.Run] if handlers went on after their
	// context had ended.
	ErrAbandoned = errors.New("consumer: handlers still running")
)

// A MessageError names the record that stands in the way.
type MessageError struct {
	Topic     string
	Partition int32
	Offset    int64
	Key       string // of the lane; empty if the record could not be identified
	Attempts  int    // that were charged to the message
	Err       error
}

func (e *MessageError) Error() string {
	return fmt.Sprintf("%s/%d offset %d, key %q, attempt %d: %v", e.Topic, e.Partition, e.Offset, e.Key, e.Attempts, e.Err)
}

func (e *MessageError) Unwrap() error { return e.Err }
