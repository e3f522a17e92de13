package compare

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
)

// A machine that gets slower from round to round changes rates, not ratios.
func TestRatioIsTakenInsideARound(t *testing.T) {
	slow := 0.0
	n := 0
	run := func(speed float64) func(context.Context) (Sample, error) {
		return func(context.Context) (Sample, error) {
			if n++; n%2 == 1 { // the first of a round
				slow++
			}
			return Sample{"rate": speed / slow}, nil
		}
	}
	res, err := Rounds(t.Context(), 5, []Case{{"ours", run(300)}, {"theirs", run(100)}})
	if err != nil {
		t.Fatal(err)
	}
	if got := res.Of("rate", "ours"); len(got) != 5 || got[0] != 300 || got[4] != 60 {
		t.Errorf("rates = %v, want 300 falling to 60", got)
	}
	for _, got := range res.Ratio("rate", "ours", "theirs") {
		if math.Abs(got-3) > 1e-9 {
			t.Errorf("ratio = %v, want 3", got)
		}
	}
}

func TestRoundsEndWithTheFirstError(t *testing.T) {
	broken, runs := errors.New("broken"), 0
	_, err := Rounds(t.Context(), 3, []Case{{"it", func(context.Context) (Sample, error) { runs++; return nil, broken }}})
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), "round 1, it") {
		t.Errorf("error = %v, want it to say round and case", err)
	}
	if runs != 1 {
		t.Errorf("%d runs, want 1", runs)
	}
}

func TestQuantile(t *testing.T) {
	vs := Values{5, 1, 4, 2, 3}
	for q, want := range map[float64]float64{0: 1, 0.25: 2, 0.5: 3, 0.75: 4, 0.99: 5, 1: 5} {
		if got := vs.Quantile(q); got != want {
			t.Errorf("quantile %v = %v, want %v", q, got, want)
		}
	}
	if got := (Values{1, 4, 2, 3}).Median(); got != 2.5 {
		t.Errorf("median of four = %v, want 2.5", got)
	}
	if got := (Values{}).Median(); !math.IsNaN(got) {
		t.Errorf("median of none = %v, want NaN", got)
	}
	if vs[0] != 5 {
		t.Error("the values were put in another order")
	}
}

func TestTargetLines(t *testing.T) {
	var out bytes.Buffer
	r := NewReport(&out, false, "")
	r.AtLeast("a", Values{1, 2, 3}, 1.25)
	r.AtLeast("b", Values{1.2345}, 1.25)
	r.AtMost("c", Exactly(0), 0)
	r.AtMost("d", Values{100.01}, 100)
	r.AtLeast("e", nil, 1) // nothing measured is nothing reached
	want := `target a 2 >= 1.25 ok
target b 1.234 >= 1.25 short
target c 0 <= 0 ok
target d 100.0 <= 100 short
target e NaN >= 1 short
`
	if got := out.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if r.Short() != 3 {
		t.Errorf("%d short, want 3", r.Short())
	}
}

func TestTargetsAsJSON(t *testing.T) {
	var out bytes.Buffer
	r := NewReport(&out, true, "quick:")
	r.Title("not", "for machines")
	r.AtLeast("a", Values{1, 2, 3}, 4)
	r.AtMost("b", nil, 1)
	var got struct {
		Target   string
		Measured *float64
		Sign     string
		Wanted   float64
		OK       *bool
	}
	d := json.NewDecoder(&out)
	if err := d.Decode(&got); err != nil {
		t.Fatal(err)
	}
	if got.Target != "quick:a" || *got.Measured != 2 || got.Sign != ">=" || got.Wanted != 4 || *got.OK {
		t.Errorf("got %+v", got)
	}
	if err := d.Decode(&got); err != nil {
		t.Fatal(err)
	}
	if got.Measured != nil {
		t.Errorf("measured = %v, want null for what was not measured", *got.Measured)
	}
}

func TestTable(t *testing.T) {
	res, err := Rounds(t.Context(), 1, []Case{
		{"ours", func(context.Context) (Sample, error) { return Sample{"rate": 12345.6, "allocs": 2.5}, nil }},
		{"theirs", func(context.Context) (Sample, error) { return Sample{"rate": 45.67}, nil }},
	})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	NewReport(&out, false, "").Table("part", res, "rate", "allocs")
	want := "" +
		"    rate  allocs\n" +
		"   12346   2.500  ours\n" +
		"   45.67       -  theirs\n"
	if got := out.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}
