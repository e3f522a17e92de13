package demo

import (
	"strings"
	"testing"
)

func at(offset int64) position { return position{"t", 0, offset} }

func TestReconcile(t *testing.T) {
	const id = "timeout:1:2"
	decided := outcome{At: at(7), ID: id, Decided: true, Result: resultApplied}
	yes := func(string) bool { return true }
	no := func(string) bool { return false }
	tests := []struct {
		name    string
		reports func(j *journal)
		records []logged
		row     func(string) bool
		want    string // in the one open line; empty: all is accounted for
		rows    int
	}{
		{
			name:    "an outcome",
			reports: func(j *journal) { j.tell("A", report{Outcome: &decided}) },
			records: []logged{{at(7), id}},
			row:     no,
		},
		{
			name: "an outcome after a try that decided nothing",
			reports: func(j *journal) {
				j.tell("A", report{Outcome: &outcome{At: at(7), ID: id, Result: resultStale}})
				j.tell("A", report{Outcome: &decided})
			},
			records: []logged{{at(7), id}},
			row:     no,
		},
		{
			name:    "no outcome",
			reports: func(*journal) {},
			records: []logged{{at(7), id}},
			row:     yes, // a row alone may be that of another copy
			want:    "nobody reported",
		},
		{
			name: "only a try that decided nothing",
			reports: func(j *journal) {
				j.tell("A", report{Outcome: &outcome{At: at(7), ID: id, Result: resultBusy}})
			},
			records: []logged{{at(7), id}},
			row:     yes,
			want:    "nobody reported",
		},
		{
			name: "in the hands of a killed instance, with a row",
			reports: func(j *journal) {
				j.tell("A", report{Holding: &holding{At: at(7), ID: id}})
				j.dead["A"] = true
			},
			records: []logged{{at(7), id}},
			row:     yes,
			rows:    1,
		},
		{
			name: "in the hands of a killed instance, without a row",
			reports: func(j *journal) {
				j.tell("A", report{Holding: &holding{At: at(7), ID: id}})
				j.dead["A"] = true
			},
			records: []logged{{at(7), id}},
			row:     no,
			want:    "nobody reported",
		},
		{
			name: "in the hands of an instance that lives, with a row",
			reports: func(j *journal) {
				j.tell("A", report{Holding: &holding{At: at(7), ID: id}})
			},
			records: []logged{{at(7), id}},
			row:     yes,
			want:    "nobody reported",
		},
		{
			name:    "an outcome of another event",
			reports: func(j *journal) { j.tell("A", report{Outcome: &decided}) },
			records: []logged{{at(7), "timeout:2:2"}},
			row:     yes,
			want:    "A reported timeout:1:2",
		},
		{
			name: "an outcome of a record that is not there",
			reports: func(j *journal) {
				j.tell("A", report{Outcome: &decided})
				j.tell("A", report{Outcome: &outcome{At: at(8), ID: id, Decided: true}})
			},
			records: []logged{{at(7), id}},
			row:     yes,
			want:    "which is not there",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			j := newJournal()
			tt.reports(j)
			got := reconcile(tt.records, j, tt.row)
			if len(got.open) != min(1, len(tt.want)) || !strings.Contains(strings.Join(got.open, "\n"), tt.want) {
				t.Errorf("open = %q, want one with %q", got.open, tt.want)
			}
			if got.rows != tt.rows {
				t.Errorf("rows = %d, want %d", got.rows, tt.rows)
			}
			if got.records != len(tt.records) {
				t.Errorf("records = %d, want %d", got.records, len(tt.records))
			}
		})
	}
}
