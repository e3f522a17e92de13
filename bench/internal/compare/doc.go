// Package compare measures things side by side on a machine that is never quiet.
//
// An absolute rate says more about the machine, and about who else uses it, than
// about what was measured. So all cases of a comparison run in turn, round after
// round, each round in another order; what is compared is the ratio of two cases
// inside one round; and the result is the median of those ratios. A disturbance
// then hits both sides of a ratio, or only a few of the rounds.
//
//	res, err := compare.Rounds(ctx, 15, []compare.Case{
//		{Name: "ours", Run: ours},
//		{Name: "theirs", Run: theirs},
//	})
//	report.Table("calls", res, "rate")
//	report.AtLeast("calls/theirs", res.Ratio("rate", "ours", "theirs"), 1.25)
package compare
