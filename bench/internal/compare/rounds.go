package compare

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
)

// A Case is one of the things that are compared.
type Case struct {
	Name string
	Run  func(ctx context.Context) (Sample, error) // measures once
}

// A Sample is what one measurement of a case found, by metric.
type Sample map[string]float64

// Results are the samples of all rounds.
type Results struct {
	names   []string // in the order of the cases
	samples map[string][]Sample
}

// Rounds runs all cases, as often as rounds says. The first error ends it.
func Rounds(ctx context.Context, rounds int, cases []Case) (*Results, error) {
	r := &Results{samples: map[string][]Sample{}}
	for _, c := range cases {
		r.names = append(r.names, c.Name)
	}
	for round := range rounds {
		// In a random order, so that no case always follows the same neighbour.
		for _, i := range rand.Perm(len(cases)) {
			runtime.GC() // what the one before left behind is not this one's burden
			s, err := cases[i].Run(ctx)
			if err == nil && ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			if err != nil {
				return nil, fmt.Errorf("round %d, %s: %w", round+1, cases[i].Name, err)
			}
			r.samples[cases[i].Name] = append(r.samples[cases[i].Name], s)
		}
	}
	return r, nil
}

// Of returns a metric of a case, one value for each round.
func (r *Results) Of(metric, name string) Values {
	var vs Values
	for _, s := range r.samples[name] {
		if v, ok := s[metric]; ok {
			vs = append(vs, v)
		}
	}
	return vs
}

// Ratio returns a metric of one case divided by that of another, round by round.
func (r *Results) Ratio(metric, name, by string) Values {
	a, b := r.Of(metric, name), r.Of(metric, by)
	vs := make(Values, min(len(a), len(b)))
	for i := range vs {
		vs[i] = a[i] / b[i]
	}
	return vs
}

// Values are the same quantity measured several times.
type Values []float64

// Exactly is a quantity that is known without repetition.
func Exactly(v float64) Values { return Values{v} }

// Median returns the value in the middle, NaN if there is none.
func (vs Values) Median() float64 { return vs.Quantile(0.5) }

// Quantile returns the value below which that share of the values lies, NaN if there
// is none. Between two values it takes the higher one; the median of an even
// number is the mean of the two in the middle.
func (vs Values) Quantile(q float64) float64 {
	if len(vs) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(vs))
	n := len(sorted)
	if q == 0.5 && n%2 == 0 {
		return (sorted[n/2-1] + sorted[n/2]) / 2
	}
	return sorted[min(n-1, int(q*float64(n)))]
}
