package demo

import (
	"strings"
	"testing"
)

// grantsOf returns grants of one lock, by instance, fence and what ended them.
func grantsOf(ts ...tenure) map[grant]*tenure {
	m := map[grant]*tenure{}
	for _, t := range ts {
		t.Lock = "order:1"
		t.Owner = "owner-" + t.by + string(rune('a'+t.Fence))
		m[t.grant] = &t
	}
	return m
}

func held1(by string, fence int64, lost string) tenure {
	return tenure{grant: grant{Fence: fence}, by: by, lost: lost}
}

func TestTakeovers(t *testing.T) {
	tests := []struct {
		name   string
		grants map[grant]*tenure
		want   int
	}{
		{"one holder", grantsOf(held1("A", 1, "expired")), 0},
		{"released before", grantsOf(held1("A", 1, ""), held1("B", 2, "")), 0},
		{"killed", grantsOf(held1("A", 1, "killed"), held1("B", 2, "")), 1},
		{"lost, and taken again by the same instance", grantsOf(held1("A", 1, "expired"), held1("A", 2, "")), 0},
		{"lost, taken again, released", grantsOf(held1("A", 1, "expired"), held1("A", 2, ""), held1("B", 3, "")), 0},
		{"lost twice", grantsOf(held1("A", 1, "expired"), held1("B", 2, "taken over"), held1("C", 3, "")), 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := takeovers(tt.grants)
			if len(got) != tt.want {
				t.Errorf("takeovers = %v, want %d", got, tt.want)
			}
			if n := incomplete(got, nil); n != 0 {
				t.Errorf("%d of %v are incomplete, want none", n, got)
			}
		})
	}
}

// A lock that passes on says nothing about another lock.
func TestTakeovers_PerLock(t *testing.T) {
	m := map[grant]*tenure{}
	for _, x := range []tenure{
		{grant: grant{"order:1", "x", 1}, by: "A", lost: "killed"},
		{grant: grant{"order:2", "y", 2}, by: "B"},
	} {
		m[x.grant] = &x
	}
	if got := takeovers(m); len(got) != 0 {
		t.Errorf("takeovers = %v, want none", got)
	}
}

func TestRefusals(t *testing.T) {
	grants := grantsOf(held1("A", 1, "expired"), held1("B", 2, ""))
	var mine grant
	for g, tenure := range grants {
		if tenure.by == "A" {
			mine = g
		}
	}
	stale := func(stored int64) map[position][]told {
		return map[position][]told{at(7): {
			{"A", outcome{At: at(7), ID: "timeout:1:2", Grant: mine, Result: resultStale, Stored: stored}},
			{"A", outcome{At: at(7), ID: "timeout:1:2", Result: resultDuplicate}},
		}}
	}

	known := refusals(stale(2), grants)
	if len(known) != 1 || known[0].by.by != "B" || incomplete(nil, known) != 0 {
		t.Errorf("refusals = %v, want one, complete, by B", known)
	}
	for _, want := range []string{"order:1", "A (owner", "fence 1)", "B (owner", "fence 2)"} {
		if !strings.Contains(known[0].String(), want) {
			t.Errorf("evidence = %q, want %q in it", known[0], want)
		}
	}
	if unknown := refusals(stale(9), grants); len(unknown) != 1 || incomplete(nil, unknown) != 1 {
		t.Errorf("refusals = %v, want one that is incomplete: nobody is known to have had fence 9", unknown)
	}
}

func TestIncomplete(t *testing.T) {
	good := takeover{
		from: tenure{grant: grant{"order:1", "x", 1}, by: "A"},
		to:   tenure{grant: grant{"order:1", "y", 2}, by: "B"},
	}
	if n := incomplete([]takeover{good}, nil); n != 0 {
		t.Errorf("incomplete = %d, want 0", n)
	}
	for name, spoil := range map[string]func(*takeover){
		"no owner before": func(t *takeover) { t.from.Owner = "" },
		"no owner after":  func(t *takeover) { t.to.Owner = "" },
		"one owner":       func(t *takeover) { t.to.Owner = t.from.Owner },
		"no fence before": func(t *takeover) { t.from.Fence = 0 },
		"fences crossed":  func(t *takeover) { t.from.Fence = 3 },
		"one fence":       func(t *takeover) { t.to.Fence = t.from.Fence },
	} {
		t.Run(name, func(t *testing.T) {
			bad := good
			spoil(&bad)
			if n := incomplete([]takeover{bad}, nil); n != 1 {
				t.Errorf("incomplete = %d, want 1", n)
			}
		})
	}
}
