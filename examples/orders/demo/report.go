package demo

import (
	"cmp"
	"fmt"
)

// A report is one line from a child, with one of its fields set.
type report struct {
	Holding *holding `json:"holding,omitempty"`
	Outcome *outcome `json:"outcome,omitempty"`
	Round   *round   `json:"round,omitempty"`
}

// A position is a place in Kafka.
type position struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
}

func (p position) String() string { return fmt.Sprintf("%s/%d@%d", p.Topic, p.Partition, p.Offset) }

func comparePositions(a, b position) int {
	return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Offset, b.Offset))
}

// A grant is one outermost hold of a lock. It is zero where handlers have no locks.
type grant struct {
	Lock  string `json:"lock,omitempty"`
	Owner string `json:"owner,omitempty"` // digest
	Fence int64  `json:"fence,omitempty"`
}

// A holding says that a message is about to be handled: its lock is held, its order was
// looked at, nothing is claimed.
type holding struct {
	At    position `json:"at"`
	ID    string   `json:"id"`
	Grant grant    `json:"grant"`
}

// An outcome says what became of one try of one delivery.
type outcome struct {
	At      position `json:"at"`
	ID      string   `json:"id"`
	Grant   grant    `json:"grant"`
	Lost    string   `json:"lost,omitempty"` // why the lock was not its holder's any more at the end
	Decided bool     `json:"decided"`
	Result  string   `json:"result"`           // what the inbox said, else "applied", "skipped" or the class of the error
	Stored  int64    `json:"stored,omitempty"` // fence that had claimed, if Result is stale
	Err     string   `json:"err,omitempty"`
}

// A round is one of the scan job.
type round struct {
	Announced int    `json:"announced"`
	Busy      bool   `json:"busy"`
	Err       string `json:"err,omitempty"`
}

// A marking is sent by the scan job when it has told its events, has not marked them
// yet, and holds its lock twice. It waits for the answer. It goes to the parent's
// server, at markingPath.
type marking struct {
	From  string `json:"from"`
	Count int    `json:"count"`
	Grant grant  `json:"grant"`
}

const markingPath = "/marking"

// Results of an [outcome] that are counted.
const (
	resultApplied   = "applied"
	resultSkipped   = "skipped"
	resultDuplicate = "duplicate"
	resultStale     = "stale"
	resultBusy      = "busy"
)
