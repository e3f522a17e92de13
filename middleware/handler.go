package middleware

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Identity says what a record is about. The application's one function from
// record to Identity (an [Identify]) is the only place where keys and IDs are
// decided.
type Identity struct {
	// Key is the business key, such as "order:1001": the name of the lock, the
	// resource of the fence and the lane of the consumer. Required.
	Key string

	// ID is the business ID of the message. Two deliveries with one ID are the
	// same message, wherever they came from. Required: an ID is never invented.
	ID string

	// Digest is what must be equal in a second delivery of the same ID.
	//
	// Defaults to the SHA-256 of the record's value.
	Digest []byte

	// Also names further business keys that the handler needs. They are locked
	// together with Key, before the transaction begins.
	Also []string
}

// Identify derives the identity of a record. It runs on the polling goroutine,
// so it must be fast and must not block. An error is permanent: the record
// cannot be handled, by anybody.
type Identify func(r *kgo.Record) (Identity, error)

// A Message is a record on its way through a handler.
type Message struct {
	Identity

	// Record is what Kafka delivered. Handlers must not change it: the same
	// record may be handled again.
	Record *kgo.Record

	// TopicID is the ID of the record's topic, zero if it is not known. A topic that is
	// made anew under its old name has another, so this is what makes the offset a place:
	// see [inbox.Position].
	TopicID [16]byte

	// Suspect says that a process has died while it may have been at work on this
	// message: see [inbox.Message.Suspect]. Whoever delivers it has to know.
	Suspect bool

	// Attempt counts the tries that were charged to this message in this
	// process, from 1.
	Attempt int
}

// Names returns all business keys of the message, Key first.
func (m *Message) Names() []string {
	if len(m.Also) == 0 {
		return []string{m.Key}
	}
	return append([]string{m.Key}, m.Also...)
}

// NewMessage identifies a record and checks its identity. The error is
// [Permanent]: what cannot be identified cannot be handled.
func NewMessage(identify Identify, r *kgo.Record) (*Message, error) {
	m := &Message{Record: r, Attempt: 1}
	err := protect(func() (err error) {
		m.Identity, err = identify(r)
		return err
	})
	if err == nil {
		err = m.Identity.validate()
	}
	if err != nil {
		return nil, Permanent(fmt.Errorf("identify record at %s/%d offset %d: %w", r.Topic, r.Partition, r.Offset, err))
	}
	return m, nil
}

func (id Identity) validate() error {
	switch {
	case strings.TrimSpace(id.Key) == "":
		return errors.New("Identity.Key is empty or blank, must be the business key of the record")
	case strings.TrimSpace(id.ID) == "":
		return errors.New("Identity.ID is empty or blank, must be the business ID of the message")
	case slices.Contains(id.Also, ""):
		return errors.New("Identity.Also holds an empty name, each must be a business key")
	}
	return nil
}

// A Handler handles messages of distinct keys. It returns nil, or one error per
// message in the same order. A nil error means decided: the offset of that
// message may be committed. See [Classify] for what the other errors mean.
//
// Handle is called from several goroutines at once, never twice at once for
// the same key.
type Handler interface {
	Handle(ctx context.Context, ms []*Message) []error
}

// HandlerFunc lets a function be a [Handler].
type HandlerFunc func(ctx context.Context, ms []*Message) []error

// Handle calls f.
func (f HandlerFunc) Handle(ctx context.Context, ms []*Message) []error { return f(ctx, ms) }

// Middleware wraps a handler in another.
type Middleware func(next Handler) Handler

// Chain wraps h so that the first middleware is the outermost.
func Chain(h Handler, mws ...Middleware) Handler {
	if h == nil {
		panic("middleware: Chain of a nil Handler")
	}
	for _, mw := range slices.Backward(mws) {
		h = mw(h)
	}
	return h
}
