package middleware

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"
)

// ErrBehind marks a record that was not handled because an earlier one of the
// same key was not decided.
var ErrBehind = errors.New("middleware: not handled, an earlier record of its key is undecided")

// Records lets another consumer than ours use a handler. The function it returns
// handles records in their order per key and answers with one error each; the
// caller commits an offset when the errors of all records up to it are
// [Decided]. Records of one key are handled one after the other; once one is not
// decided, those behind it match [ErrBehind].
func Records(identify Identify, h Handler) func(ctx context.Context, rs []*kgo.Record) []error {
	if identify == nil || h == nil {
		panic("middleware: Records of a nil Identify or Handler")
	}
	return func(ctx context.Context, rs []*kgo.Record) []error {
		errs := make([]error, len(rs))
		ms := make([]*Message, len(rs))
		left := make([]int, 0, len(rs))
		for i, r := range rs {
			if ms[i], errs[i] = NewMessage(identify, r); errs[i] == nil {
				left = append(left, i)
			}
		}
		failed := map[string]bool{}
		for len(left) > 0 {
			var batch []*Message
			var at, later []int
			taken := map[string]bool{}
			for _, i := range left {
				switch key := ms[i].Key; {
				case failed[key]:
					errs[i] = fmt.Errorf("%w: %q", ErrBehind, key)
				case taken[key]:
					later = append(later, i)
				default:
					taken[key] = true
					batch, at = append(batch, ms[i]), append(at, i)
				}
			}
			if len(batch) > 0 {
				for j, err := range Outcomes(h.Handle(ctx, batch), len(batch)) {
					errs[at[j]] = err
					failed[batch[j].Key] = Classify(err) != Decided
				}
			}
			left = later
		}
		return errs
	}
}
