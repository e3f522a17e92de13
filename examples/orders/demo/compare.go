package demo

import (
	"fmt"
	"strings"
)

// expected says of a world what its guard is held to: none and lock do damage, inbox and
// both do none and keep every invariant.
func (f *findings) expected() bool {
	if f.Guard.Claims() {
		return f.Damage == 0 && f.broken() == 0
	}
	return f.Damage > 0
}

// printComparison prints worlds side by side, and reports whether each is as expected.
func printComparison(s *screen, all []*findings) bool {
	s.head("side by side")
	row := func(name string, cell func(f *findings) string) []string {
		cells := []string{name}
		for _, f := range all {
			cells = append(cells, cell(f))
		}
		return cells
	}
	counted := func(name string) []string {
		return row(name, func(f *findings) string { return fmt.Sprint(f.count(name)) })
	}
	rows := [][]string{
		row("guard", func(f *findings) string { return string(f.Guard) }),
		row("orders damaged", func(f *findings) string { return fmt.Sprint(f.Damage) }),
		row("refunded too much", func(f *findings) string { return fmt.Sprintf("%d.%02d", f.Excess/100, f.Excess%100) }),
		row("invariants broken", func(f *findings) string { return fmt.Sprint(f.broken()) }),
	}
	for _, name := range []string{"records", "deliveries", "applied", "duplicates", "skipped", "stale", "takeovers", "busy", "lost-or-again", "payment-calls"} {
		rows = append(rows, counted(name))
	}
	rows = append(rows, row("seconds", func(f *findings) string { return fmt.Sprintf("%.1f", f.Took.Seconds()) }))
	s.table(rows, 1, 2, 3, 4)
	s.print("\n")
	ok := true
	for _, f := range all {
		if !f.expected() {
			ok = false
			s.say("guard %s is not as expected:", f.Guard)
			if !f.Guard.Claims() {
				s.say("  it did no damage")
			}
			for _, i := range f.Invariants {
				if i.Broken != 0 && f.Guard.Claims() {
					s.say("  %s: %s (broken: %d)", i.Name, i.Means, i.Broken)
				}
			}
			printSome(s, "records that nobody accounts for", f.open)
		}
	}
	return ok
}

// printComparisonLines prints the lines for scripts.
func printComparisonLines(s *screen, all []*findings) {
	var b strings.Builder
	b.WriteString("\n")
	for _, f := range all {
		broken := int64(0)
		if !f.expected() {
			broken = 1
		}
		name := "damages-nothing"
		if !f.Guard.Claims() {
			name = "damages-something"
		}
		writeInvariant(&b, string(f.Guard)+"-"+name, broken)
	}
	for _, f := range all {
		for _, c := range f.Counts {
			fmt.Fprintf(&b, "count %s-%s %d\n", f.Guard, c.Name, c.N)
		}
	}
	for _, f := range all {
		fmt.Fprintf(&b, "damage %s %d\n", f.Guard, f.Damage)
	}
	s.print(b.String())
}
