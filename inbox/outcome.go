package inbox

import "fmt"

// An Outcome is what became of a message.
type Outcome int

const (
	// Applied: the handler's effect and the message's row are committed.
	Applied Outcome = iota + 1

	// Skipped: the handler returned an error with the method Skipped() bool that
	// answers true. The row is committed, with what the handler wrote before.
	Skipped

	// Duplicate: the message was decided before: its row says so, or its offset is marked.
	Duplicate

	// Conflict: the ID was decided before, for a message with another digest. The
	// producer gave one ID to two messages.
	Conflict

	// Busy: another transaction holds the resource or the ID.
	Busy

	// Stale: a holder with a greater token has claimed the resource, or the token is so
	// old that one may have.
	Stale

	// Again: nothing is known against the message, and nothing of it is committed,
	// unless the answer to COMMIT was lost. Apply it again: the claim tells.
	Again

	// Failed: the handler did, or the message has no usable identity.
	Failed

	// Parked: the message waits behind a dead letter of its lock, see [Config.ParkKey]. Or,
	// of [Tasks.Do]: whether its effect took place is not known, and people have to decide.
	// A row says so, so it need not be delivered again.
	Parked

	// Dead: the message was given up, and its dead letter is committed with its row.
	Dead
)

// Decided reports whether the message is done: its row is committed, so it need
// not be delivered again.
func (o Outcome) Decided() bool {
	return o == Applied || o == Skipped || o == Duplicate || o == Parked || o == Dead
}

func (o Outcome) String() string {
	names := [...]string{"none", "applied", "skipped", "duplicate", "conflict", "busy", "stale", "again", "failed", "parked", "dead"}
	if o < 0 || int(o) >= len(names) {
		return fmt.Sprintf("Outcome(%d)", int(o))
	}
	return names[o]
}

// A Result is the outcome of one message.
type Result struct {
	Outcome Outcome

	// Answer is what the handler answered, if the message was applied by
	// [Inbox.Answer]: for Applied the one of this call, for Duplicate the one that is stored
	// with the message's row. Nil: there is none, or it was erased by [Inbox.Forget].
	Answer []byte

	// Err is nil for Applied and Duplicate. For Skipped and Failed it wraps what
	// the handler returned, a [*PanicError], [ErrSwallowed], [ErrIdle], [ErrEnded]
	// or an [*IdentityError]. For Dead it is a [*DeadError], for Parked a
	// [*BehindError] or a [*ParkedError]. Else it is a
	// [*ConflictError], [*BusyError], [*StaleError] or [*AgainError].
	Err error
}
