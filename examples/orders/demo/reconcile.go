package demo

import (
	"context"
	"fmt"
)

// logged is a record that is in a topic.
type logged struct {
	at position
	id string
}

// A reconciliation compares what is in the topics with what the children reported.
type reconciliation struct {
	records  int
	outcomes int      // records with a reported outcome that decided them
	rows     int      // records that a killed instance had in hand, with a row of the inbox
	open     []string // the others
}

// reconcile accounts for each record. decidedByRow tells whether the database says that
// an event was handled: all that is left of what a killed instance did right before.
func reconcile(records []logged, j *journal, decidedByRow func(id string) bool) reconciliation {
	r := reconciliation{records: len(records)}
	for _, rec := range records {
		o, ok := j.decided(rec.at)
		switch {
		case ok && o.ID == rec.id:
			r.outcomes++
		case ok:
			r.open = append(r.open, fmt.Sprintf("%v holds %s, and %s reported %s", rec.at, rec.id, o.by, o.ID))
		case j.heldByDead(rec.at) && decidedByRow(rec.id):
			r.rows++
		default:
			r.open = append(r.open, fmt.Sprintf("%v holds %s, and nobody reported what became of it", rec.at, rec.id))
		}
	}
	// Reports about records that are not there would be as wrong.
	there := make(map[position]bool, len(records))
	for _, rec := range records {
		there[rec.at] = true
	}
	for at, os := range j.outcomes {
		if !there[at] {
			r.open = append(r.open, fmt.Sprintf("%s reported %s at %v, which is not there", os[0].by, os[0].ID, at))
		}
	}
	return r
}

// heldByDead reports whether an instance that was killed was about to handle a delivery.
func (j *journal) heldByDead(at position) bool {
	for _, t := range j.held[at] {
		if j.dead[t.by] {
			return true
		}
	}
	return false
}

const (
	inboxIDsSQL  = `SELECT id FROM inbox`
	closedIDsSQL = `SELECT 'timeout:' || id || ':' || extract(epoch FROM deadline)::bigint FROM orders WHERE state = 'closed'
UNION SELECT 'remind:' || order_id || ':' || extract(epoch FROM deadline)::bigint FROM notices`
)

// decidedRows returns the IDs of events that the database knows as handled: the rows of
// the inbox or, without one, what the handlers wrote.
func (w *world) decidedRows(ctx context.Context) (map[string]bool, error) {
	query := closedIDsSQL
	if w.guard.Claims() {
		query = inboxIDsSQL
	}
	var ids []string
	if err := w.db.SelectContext(ctx, &ids, query); err != nil {
		return nil, fmt.Errorf("read handled events: %w", err)
	}
	rows := make(map[string]bool, len(ids))
	for _, id := range ids {
		rows[id] = true
	}
	return rows, nil
}
