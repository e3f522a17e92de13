package inbox

import (
	"crypto/sha256"
	"encoding"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
)

// MaxIDBytes is the limit of [Message.ID] and [Fence.Resource]. Longer ones are
// most likely a whole message, taken for its ID.
const MaxIDBytes = 1024

// A Message is what the inbox has to know about a message.
type Message struct {
	// ID is the business ID: two deliveries with one ID are the same message. Any
	// bytes but NUL. Required, not blank, at most [MaxIDBytes].
	ID string

	// Digest is what must be equal in a second delivery of the ID, of any length.
	// If it differs from the first one's, the message is a [Conflict]. Empty: not
	// compared.
	Digest []byte

	// Fences are the lock grants under which the message is handled: none, one, or
	// several. The message runs only if no greater token of any of them has been
	// seen. A message with several is applied in a transaction of its own.
	Fences []Fence

	// Position is where the message came from, kept with its row. If it lies in a run
	// that is marked, the message is a [Duplicate]: see [Inbox.Mark]. Nil: not Kafka.
	Position *Position

	// Suspect says that a process has died while it may have been at work on this message:
	// the first ones of a partition that was taken over from one that did not say
	// good-bye. A suspect is applied in a transaction of its own, and where failures are
	// counted its start is written down before, which costs a transaction more: so a
	// message that kills its process is [Dead] after [Config.MaxStarts] of them.
	Suspect bool

	// Body is the message itself, for whoever gives it up or keeps it: it is handed to
	// [Config.DeadLetter] as it is, and marshalled only where the message is stored. Nil:
	// nothing.
	Body encoding.BinaryMarshaler
}

// A Fence is the number of a lock grant.
type Fence struct {
	// Resource names what is locked, the same for all who lock it, whatever their
	// tenant or consumer. At most [MaxIDBytes].
	Resource string

	// Token grows with each grant of the lock. At least 1.
	//
	// One from 10^15 on is taken for the time of the grant, in microseconds since 1970,
	// as the locks of package reentrant give it, and is refused when it is older than half of
	// [Config.FenceRetention].
	Token int64
}

// A Position is a place in Kafka.
type Position struct {
	Topic     [16]byte // the topic's ID, not its name: a topic made anew is another
	Partition int32
	Offset    int64
}

// A uuid is the form in which hashes are stored: 16 bytes, with a fast index.
type uuid [16]byte

// hash makes a uuid of parts that cannot run into each other. The kind keeps
// hashes of different meaning apart. What is stored depends on it: a change
// here makes every message in every inbox new.
func hash(kind string, parts ...string) uuid {
	b := make([]byte, 0, 256) // enough for most, and so no garbage
	for i := -1; i < len(parts); i++ {
		p := kind
		if i >= 0 {
			p = parts[i]
		}
		b = binary.BigEndian.AppendUint64(b, uint64(len(p)))
		b = append(b, p...)
	}
	sum := sha256.Sum256(b)
	return uuid(sum[:16])
}

// resourceKey is the key of a fence.
func resourceKey(name string) uuid { return hash("onceward inbox resource", name) }

// An entry is a message on its way through ApplyBatch.
type entry struct {
	index       int // in the slice of the caller
	id          string
	key         uuid
	fingerprint uuid
	digested    bool // whether fingerprint means something
	fences      []fence
	position    *Position
	marked      bool     // whether its position lies in a run, see Mark
	msg         *Message // of the caller

	run    run    // of its handler, in the transaction at work
	result Result // zero until it is decided

	// How its failures are counted, see account and reckon.
	noted    bool       // something is known of it: failures, or a dead letter before it
	blamed   bool       // its handler was at work when something failed that was nobody's fault
	forced   bool       // to be charged with a failure that was nobody's fault
	charged  bool       // with its failure, in a transaction that is committed, or may be
	begun    bool       // as a suspect, and not seen to end
	lost     bool       // to be buried, without being handled
	redriven bool       // though it is dead
	attempts int        // failures charged, this one included
	dead     *DeadError // its result, once it is committed
}

type fence struct {
	resource uuid
	name     string
	token    int64
}

// key is the form in which the ID of a message is stored.
func (b *Inbox) key(id string) uuid {
	return hash("onceward inbox key", b.cfg.Tenant, b.cfg.Consumer, id)
}

// newEntry checks a message and gives its names their stored form.
func (b *Inbox) newEntry(index int, m *Message) (*entry, error) {
	if err := checkName("ID", m.ID); err != nil {
		return nil, err
	}
	e := &entry{
		index:    index,
		id:       m.ID,
		key:      b.key(m.ID),
		position: m.Position,
		msg:      m,
	}
	if len(m.Digest) > 0 {
		e.fingerprint, e.digested = hash("onceward inbox fingerprint", string(m.Digest)), true
	}
	for i, f := range m.Fences {
		field := "Fences[" + strconv.Itoa(i) + "]"
		if err := checkName(field+".Resource", f.Resource); err != nil {
			return nil, err
		}
		if f.Token < 1 {
			return nil, &IdentityError{field + ".Token", fmt.Sprintf("is %d, must be at least 1", f.Token)}
		}
		fc := fence{resourceKey(f.Resource), f.Resource, f.Token}
		if err := e.add(fc, field); err != nil {
			return nil, err
		}
	}
	if err := checkPosition(m.Position); err != nil {
		return nil, err
	}
	return e, nil
}

func checkPosition(p *Position) error {
	switch {
	case p == nil:
		return nil
	case p.Topic == ([16]byte{}):
		return &IdentityError{"Position.Topic", "is zero, must be the ID of the topic"}
	case p.Partition < 0 || p.Offset < 0:
		return &IdentityError{"Position", fmt.Sprintf("is partition %d, offset %d, must not be negative", p.Partition, p.Offset)}
	}
	return nil
}

// add adds a fence. One grant named twice is one fence; two grants of one lock
// cannot both be the newest.
func (e *entry) add(f fence, field string) error {
	for _, g := range e.fences {
		if g.resource == f.resource && g.token != f.token {
			return &IdentityError{field, fmt.Sprintf("gives resource %q a second token, %d after %d", f.name, f.token, g.token)}
		}
		if g.resource == f.resource {
			return nil
		}
	}
	e.fences = append(e.fences, f)
	return nil
}

func checkName(field, s string) error {
	switch {
	case s == "":
		return &IdentityError{field, "is empty"}
	case strings.TrimSpace(s) == "":
		return &IdentityError{field, fmt.Sprintf("is blank (%q)", s[:min(len(s), 20)])}
	case len(s) > MaxIDBytes:
		return &IdentityError{field, fmt.Sprintf("is %d bytes long, must be at most %d", len(s), MaxIDBytes)}
	case strings.IndexByte(s, 0) >= 0:
		return &IdentityError{field, fmt.Sprintf("is %q, must not contain NUL", s)}
	}
	return nil
}
