package demo

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// results reads the lines for scripts.
func results(t *testing.T, out string) (invariants map[string]string, counts, damage map[string]int) {
	t.Helper()
	invariants, counts, damage = map[string]string{}, map[string]int{}, map[string]int{}
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if strings.HasPrefix(line, " ") || len(f) < 3 {
			continue
		}
		switch f[0] {
		case "invariant":
			invariants[f[1]] = strings.Join(f[2:], " ")
		case "count", "damage":
			n, err := strconv.Atoi(f[2])
			if err != nil {
				t.Fatalf("line %q: %v", line, err)
			}
			if f[0] == "count" {
				counts[f[1]] = n
			} else {
				damage[f[1]] = n
			}
		}
	}
	return invariants, counts, damage
}

func TestDemo_Both(t *testing.T) {
	t.Parallel() // most of it is waiting for leases and sessions to end
	var out, errs bytes.Buffer
	code := small().play(&out, &errs)
	t.Logf("%s%s", &out, &errs)
	if code != 0 {
		t.Errorf("exit code = %d, want 0", code)
	}
	invariants, counts, _ := results(t, out.String())
	want := []string{
		"closed", "refunded-once", "stock-once", "ledger-once", "ledger-balances", "reminded-once", "inbox-row",
		"reentered", "paid-out-once", "offsets-reconciled", "offsets-committed", "no-lock-left",
		"duplicates-seen", "takeovers-seen", "stale-seen", "scans-busy-seen", "evidence",
	}
	for _, name := range want {
		if got := invariants[name]; got != "ok" {
			t.Errorf("invariant %s = %q, want ok", name, got)
		}
	}
	if len(invariants) != len(want) {
		t.Errorf("%d invariants, want %d: %v", len(invariants), len(want), invariants)
	}
	// And one reminder. What the killed instance did last it could not report.
	if got, most := counts["applied"], 300+1; got > most || got < most-64 {
		t.Errorf("count applied = %d, want %d or a few less", got, most)
	}
	for _, name := range []string{"deliveries", "duplicates", "stale", "takeovers"} {
		if counts[name] < 1 {
			t.Errorf("count %s = %d, want at least 1", name, counts[name])
		}
	}
	// Two locks of the paused, one of the late, two of the killed instance.
	if got := counts["takeovers"]; got < 5 {
		t.Errorf("count takeovers = %d, want at least 5", got)
	}
	if got, want := counts["reconciled-by-outcome"]+counts["reconciled-by-row"], counts["records"]; got != want || want < 600 {
		t.Errorf("%d records reconciled of %d, want all of at least 600", got, want)
	}
	evidence := regexp.MustCompile(`order:\d+: \w \(owner [0-9a-f]{8}, fence \d{16}\) refused remind:|order:\d+: \w \(owner [0-9a-f]{8}, fence \d{16}\) refused timeout:\S+ \w \(owner [0-9a-f]{8}, fence \d{16}\) had claimed`)
	if !evidence.MatchString(out.String()) {
		t.Errorf("no evidence of a refused holder, want a match of %v", evidence)
	}
}

func TestDemo_Compare(t *testing.T) {
	t.Parallel() // most of it is waiting for leases and sessions to end
	opts := small()
	opts.Compare = true
	var out, errs bytes.Buffer
	code := opts.play(&out, &errs)
	t.Logf("%s%s", &out, &errs)
	if code != 0 {
		t.Errorf("exit code = %d, want 0", code)
	}
	invariants, _, damage := results(t, out.String())
	for _, guard := range []string{"none", "lock"} {
		if damage[guard] < 1 {
			t.Errorf("damage %s = %d, want at least 1", guard, damage[guard])
		}
		if got := invariants[guard+"-damages-something"]; got != "ok" {
			t.Errorf("invariant %s-damages-something = %q, want ok", guard, got)
		}
	}
	for _, guard := range []string{"inbox", "both"} {
		if got, ok := damage[guard]; got != 0 || !ok {
			t.Errorf("damage %s = %d (printed: %v), want 0", guard, got, ok)
		}
		if got := invariants[guard+"-damages-nothing"]; got != "ok" {
			t.Errorf("invariant %s-damages-nothing = %q, want ok", guard, got)
		}
	}
}

// A guest is a demo in a process of its own.
type guest struct {
	cmd   *exec.Cmd
	lines *bufio.Scanner
	errs  bytes.Buffer
	pids  []int // of its instances
}

// startGuest starts a demo and returns when it has stopped an instance with SIGSTOP.
func startGuest(t *testing.T) *guest {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	g := &guest{cmd: exec.Command(exe, wholeDemo)}
	// Not the end of a pipe of ours, which orphans would keep open.
	g.cmd.Stderr = &g.errs
	out, err := g.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := g.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		g.cmd.Process.Kill()
		for _, pid := range g.pids {
			syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	g.lines = bufio.NewScanner(out)
	pids := regexp.MustCompile(`pids (\d+), (\d+) and (\d+)`)
	for g.lines.Scan() {
		if m := pids.FindStringSubmatch(g.lines.Text()); m != nil {
			for _, text := range m[1:] {
				pid, err := strconv.Atoi(text)
				if err != nil {
					t.Fatal(err)
				}
				g.pids = append(g.pids, pid)
			}
		}
		if strings.HasSuffix(g.lines.Text(), " is stopped") {
			if len(g.pids) != 3 {
				t.Fatalf("read the process IDs %v, want three", g.pids)
			}
			return g
		}
	}
	t.Fatalf("the demo ended before it had stopped an instance: %s", &g.errs)
	return nil
}

// gone waits until none of the instances is left.
func (g *guest) gone(t *testing.T) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for _, pid := range g.pids {
		for !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) && !zombie(pid) {
			if time.Now().After(deadline) {
				t.Fatalf("process %d is still there", pid)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// zombie reports whether a process has ended, and only waits for whoever became its parent.
func zombie(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, state, ok := bytes.Cut(stat, []byte(") "))
	return ok && state[0] == 'Z'
}

func TestDemo_ParentKilled(t *testing.T) {
	t.Parallel() // most of it is waiting for leases and sessions to end
	g := startGuest(t)
	if err := g.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_, _ = g.cmd.Process.Wait()
	g.gone(t) // also the one that is stopped
}

func TestDemo_Interrupted(t *testing.T) {
	t.Parallel() // most of it is waiting for leases and sessions to end
	g := startGuest(t)
	if err := g.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	for g.lines.Scan() { // to the end
	}
	err := g.cmd.Wait()
	if got := g.cmd.ProcessState.ExitCode(); got != exitInterrupted {
		t.Errorf("exit code = %d (%v), want %d", got, err, exitInterrupted)
	}
	if !strings.Contains(g.errs.String(), "interrupted") {
		t.Errorf("standard error = %q, want it to say interrupted", &g.errs)
	}
	g.gone(t)
}
