package demo

import (
	"fmt"
	"strings"
)

// shown is how many lines of evidence of a kind are printed.
const shown = 12

// printAudit prints what was found in one world, and reports whether all is well.
func printAudit(s *screen, f *findings) bool {
	s.head("evidence")
	printSome(s, "takeovers of locks that were not released", f.takeovers)
	printSome(s, "holders refused by the fence", f.refusals)
	printSome(s, "records that nobody accounts for", f.open)

	s.head("audit, guard %s", f.Guard)
	for _, i := range f.Invariants {
		verdict := "ok"
		if i.Broken != 0 {
			verdict = fmt.Sprintf("BROKEN (%d)", i.Broken)
		}
		s.say("%-12s %-20s %s", verdict, i.Name, i.Means)
		for line := range strings.Lines(i.How) {
			s.say("%-12s   | %s", "", strings.TrimRight(line, "\n"))
		}
	}
	s.head("counted")
	rows := make([][]string, len(f.Counts))
	for i, c := range f.Counts {
		rows[i] = []string{c.Name, fmt.Sprint(c.N)}
	}
	s.table(rows, 1)
	return f.broken() == 0
}

func printSome[T any](s *screen, what string, all []T) {
	if len(all) == 0 {
		return
	}
	s.say("%s: %d", what, len(all))
	for i, t := range all {
		if i == shown {
			s.say("  and %d more", len(all)-shown)
			return
		}
		s.say("  %v", t)
	}
}

// printLines prints the lines for scripts.
func printLines(s *screen, f *findings) {
	var b strings.Builder
	b.WriteString("\n")
	for _, i := range f.Invariants {
		writeInvariant(&b, i.Name, i.Broken)
	}
	for _, c := range f.Counts {
		fmt.Fprintf(&b, "count %s %d\n", c.Name, c.N)
	}
	s.print(b.String())
}

func writeInvariant(b *strings.Builder, name string, broken int64) {
	if broken == 0 {
		fmt.Fprintf(b, "invariant %s ok\n", name)
	} else {
		fmt.Fprintf(b, "invariant %s broken %d\n", name, broken)
	}
}
