package compare

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"text/tabwriter"
)

// A Report prints what was measured: as text for people, in which each target is
// one line
//
//	target NAME MEASURED >= WANTED ok
//
// (or "<=", or "short" in place of "ok"), or as one JSON object per line. It is not
// safe for concurrent use.
type Report struct {
	out    io.Writer
	json   bool
	prefix string // of the names of all targets
	short  int
}

// NewReport returns a report that prints to out. Names of targets begin with
// prefix: it sets apart what was measured for less than a target asks for.
func NewReport(out io.Writer, asJSON bool, prefix string) *Report {
	return &Report{out: out, json: asJSON, prefix: prefix}
}

// Short returns how many targets were missed.
func (r *Report) Short() int { return r.short }

// Title begins a part of the report.
func (r *Report) Title(name, about string) {
	if !r.json {
		fmt.Fprintf(r.out, "\n%s: %s\n", name, about)
	}
}

// Note adds a line for people.
func (r *Report) Note(format string, args ...any) {
	if !r.json {
		fmt.Fprintf(r.out, "  "+format+"\n", args...)
	}
}

// Table prints the medians of some metrics of all cases.
func (r *Report) Table(part string, res *Results, metrics ...string) {
	if r.json {
		for _, name := range res.names {
			medians := map[string]any{}
			for _, m := range metrics {
				if vs := res.Of(m, name); len(vs) > 0 {
					medians[m] = number(vs.Median())
				}
			}
			r.line(map[string]any{"part": part, "case": name, "medians": medians})
		}
		return
	}
	w := tabwriter.NewWriter(r.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "  ")
	for _, m := range metrics {
		fmt.Fprint(w, m, "\t")
	}
	fmt.Fprintln(w)
	for _, name := range res.names {
		for _, m := range metrics {
			text := "-"
			if vs := res.Of(m, name); len(vs) > 0 {
				text = format(vs.Median())
			}
			fmt.Fprint(w, text, "\t")
		}
		fmt.Fprintf(w, "  %s\n", name)
	}
	w.Flush()
}

// AtLeast prints a target: the median of what was measured must be at least wanted.
func (r *Report) AtLeast(name string, measured Values, wanted float64) {
	r.target(name, measured, ">=", wanted, measured.Median() >= wanted)
}

// AtMost prints a target: the median of what was measured must be at most wanted.
func (r *Report) AtMost(name string, measured Values, wanted float64) {
	r.target(name, measured, "<=", wanted, measured.Median() <= wanted)
}

func (r *Report) target(name string, measured Values, sign string, wanted float64, ok bool) {
	verdict := "ok"
	if !ok { // not a number is never ok
		verdict = "short"
		r.short++
	}
	name = r.prefix + name
	if r.json {
		r.line(map[string]any{
			"target": name, "measured": number(measured.Median()), "sign": sign, "wanted": wanted, "ok": ok,
			"rounds": len(measured), "quartiles": []any{number(measured.Quantile(0.25)), number(measured.Quantile(0.75))},
		})
		return
	}
	fmt.Fprintf(r.out, "target %s %s %s %s %s\n", name, format(measured.Median()), sign, strconv.FormatFloat(wanted, 'f', -1, 64), verdict)
}

func (r *Report) line(v map[string]any) {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings and numbers only
	}
	_, _ = r.out.Write(append(b, '\n')) // as with a printf: there is nobody else to tell
}

// number is a value as JSON can hold it.
func number(v float64) any {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	return v
}

// format writes a number with the digits that mean something.
func format(v float64) string {
	if math.IsNaN(v) || math.IsInf(v, 0) || v == math.Trunc(v) {
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	limits := []float64{1000, 100, 10} // 0, 1, 2, 3 decimals
	decimals := slices.IndexFunc(limits, func(l float64) bool { return math.Abs(v) >= l })
	if decimals < 0 {
		decimals = len(limits)
	}
	return strconv.FormatFloat(v, 'f', decimals, 64)
}
