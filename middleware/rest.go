package middleware

import (
	"context"
	"fmt"
)

// HandOn hands the messages that have no error yet on to next, as a shorter batch,
// and fills in what became of them: for a middleware that holds some back. errs
// has one element for each message.
func HandOn(ctx context.Context, next Handler, ms []*Message, errs []error) {
	rest := make([]*Message, 0, len(ms))
	at := make([]int, 0, len(ms))
	for i, m := range ms {
		if errs[i] == nil {
			rest, at = append(rest, m), append(at, i)
		}
	}
	if len(rest) == 0 {
		return
	}
	for j, err := range Outcomes(next.Handle(ctx, rest), len(rest)) {
		errs[at[j]] = err
	}
}

// Outcomes returns the answer of a [Handler] to n messages as n errors. An
// answer of another length is an error for each of them, since nobody can tell
// which message is meant by which.
func Outcomes(errs []error, n int) []error {
	switch len(errs) {
	case n:
		return errs
	case 0:
		return make([]error, n)
	}
	err := fmt.Errorf("handler returned %d errors for %d messages, must be none or one each", len(errs), n)
	all := make([]error, n)
	for i := range all {
		all[i] = err
	}
	return all
}
