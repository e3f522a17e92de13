package demo

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestScreen_PlainLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		s := newScreen(&out)
		stop := s.live(func() string { return "all is well" })
		s.head("first of %d", 2)
		time.Sleep(reprint + time.Millisecond)
		synctest.Wait()
		s.say("second")
		stop()
		stop() // no harm
		want := "\nfirst of 2\n  ... all is well\n  second\n"
		if got := out.String(); got != want {
			t.Errorf("printed %q, want %q", got, want)
		}
	})
}

func TestScreen_Terminal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		s := newScreen(&out)
		s.terminal = true
		stop := s.live(func() string { return strings.Repeat("status ", 20) })
		time.Sleep(repaint + time.Millisecond)
		synctest.Wait()
		s.say("line")
		stop()
		status := "  " + strings.Repeat("status ", 20)[:76]
		want := clearLine + status + clearLine + "  line\n" + status + clearLine
		if got := out.String(); got != want {
			t.Errorf("printed %q, want %q", got, want)
		}
	})
}

func TestScreen_Table(t *testing.T) {
	var out bytes.Buffer
	newScreen(&out).table([][]string{{"name", "n"}, {"a longer name", "1000"}}, 1)
	want := "  name              n\n  a longer name  1000\n"
	if got := out.String(); got != want {
		t.Errorf("printed %q, want %q", got, want)
	}
}

func TestPrintLines(t *testing.T) {
	var out bytes.Buffer
	printLines(newScreen(&out), &findings{
		Invariants: []invariant{{Name: "closed"}, {Name: "stock-once", Broken: 3}},
		Counts:     []count{{"stale", 2}},
	})
	want := "\ninvariant closed ok\ninvariant stock-once broken 3\ncount stale 2\n"
	if got := out.String(); got != want {
		t.Errorf("printed %q, want %q", got, want)
	}
}

func TestPrintAudit_Verdict(t *testing.T) {
	var out bytes.Buffer
	bad := &findings{Guard: "both", Invariants: []invariant{{Name: "closed", Means: "every order is closed", How: "SELECT 1\nFROM orders", Broken: 3}}}
	if printAudit(newScreen(&out), bad) {
		t.Error("all is well with a broken invariant")
	}
	for _, want := range []string{"BROKEN (3)", "every order is closed", "| SELECT 1\n", "| FROM orders\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("printed %q, want %q in it", &out, want)
		}
	}
}
