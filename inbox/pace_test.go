package inbox

import (
	"errors"
	"fmt"
	"testing"
)

type sqlState string

func (s sqlState) Error() string    { return "SQLSTATE " + string(s) }
func (s sqlState) SQLState() string { return string(s) }

// Each deadlock halves the batch, down to single messages, and each calm while doubles it
// again.
func TestPace_Batch(t *testing.T) {
	var p pace
	want := func(n int) {
		t.Helper()
		if got := p.batch(MaxBatch); got != n {
			t.Errorf("batch = %d, want %d", got, n)
		}
	}
	deadlock := fmt.Errorf("claim: %w", sqlState(deadlockDetected))
	want(64)
	for _, err := range []error{nil, errors.New("other"), sqlState(serializationFailure), sqlState(lockNotAvailable)} {
		p.noteEnd(64, err)
	}
	p.noteEnd(1, deadlock) // no batch was too large
	want(64)
	for _, n := range []int{32, 16, 8, 4, 2, 1, 1} {
		p.noteEnd(2, deadlock)
		want(n)
	}
	for range calmAfter - 1 {
		p.noteEnd(1, nil)
	}
	p.noteEnd(1, errors.New("other")) // says nothing
	want(1)
	p.noteEnd(1, nil)
	want(2)
	for range calmAfter - 1 {
		p.noteEnd(2, nil)
	}
	p.noteEnd(2, deadlock) // and all begins anew
	want(1)
	for range 6 * calmAfter {
		p.noteEnd(1, nil)
	}
	want(64)
	for range calmAfter {
		p.noteEnd(64, nil)
	}
	want(64)
}
