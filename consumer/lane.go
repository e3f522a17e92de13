package consumer

import "time"

type laneState int

const (
	idle    laneState = iota // empty and forgotten, or just being moved
	ready                    // in a queue of its route
	running                  // its head is with a handler
	parked                   // its head waits for a time
	stopped                  // its head can never succeed
)

// A lane is the queue of one key: its items are handled one at a time, in order
// of arrival. It belongs to the process and not to a part: it outlives a revoke,
// so that a record which comes back waits for the handler that still has it.
//
// The dispatcher's mutex guards all fields. Only a running lane holds an item
// of a part that is not owned any more, and only as its head.
type lane struct {
	key   string // empty for a record that could not be identified, alone in its lane
	items queue[*item]
	state laneState
	timer *time.Timer   // of a parked lane
	stuck *MessageError // why it is stopped

	// alone keeps its head out of the batches of others: it was slow, or part of
	// a batch that failed as a whole.
	alone bool
}
