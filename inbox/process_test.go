//go:build linux

package inbox

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/onceward/onceward/inbox/internal/crash"
	"github.com/onceward/onceward/internal/devstack/devtest"
)

const (
	envChild   = "ONCEWARD_TEST_CHILD" // what the child does
	envChildDB = "ONCEWARD_TEST_CHILD_DB"

	childHold = time.Second // MaxHold of the child
)

var (
	childMessage = Message{ID: "child", Fences: []Fence{{"x", 1}}}
	newer        = Message{ID: "newer", Fences: []Fence{{"x", 2}}}
)

// TestProcess_Child is the other process of the tests here. It applies one message and sends
// itself a signal: "stop before", ahead of the claim, "stop in handler", or "stop after claim" and so on, at
// that point of its transaction.
func TestProcess_Child(t *testing.T) {
	verb, at, _ := strings.Cut(os.Getenv(envChild), " ")
	if verb == "" {
		return // it is for the other tests
	}
	sig := map[string]syscall.Signal{"stop": syscall.SIGSTOP, "kill": syscall.SIGKILL}[verb]
	b := newBox(t, openURL(t, os.Getenv(envChildDB)), Config{MaxHold: childHold})
	_, err := b.scopeID(t.Context())
	must(t, err)
	continued := make(chan os.Signal, 1)
	signal.Notify(continued, syscall.SIGCONT)
	now := func() {
		must(t, syscall.Kill(os.Getpid(), sig))
		<-continued // a thread may go on for a moment after the signal
	}
	if at == "before" {
		now()
	}
	ctx := crash.With(t.Context(), func(_ context.Context, p crash.Point) error {
		if p.String() == at {
			now()
		}
		return nil
	})
	res := b.Apply(ctx, childMessage, func(ctx context.Context, tx *sqlx.Tx) error {
		if at == "in handler" {
			now()
		}
		return effect("child")(ctx, tx)
	})
	fmt.Printf("child: %v, idle: %v\n", res.Outcome, errors.Is(res.Err, ErrIdle))
}

// A child is a process of that test.
type child struct {
	t   *testing.T
	cmd *exec.Cmd
	out io.Reader
}

func startChild(t *testing.T, address, does string) *child {
	t.Helper()
	c := &child{t: t, cmd: exec.Command(os.Args[0], "-test.run=^TestProcess_Child$", "-test.timeout=1m")}
	c.cmd.Env = append(os.Environ(), envChild+"="+does, envChildDB+"="+address)
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := c.cmd.StdoutPipe()
	must(t, err)
	c.out = out
	c.cmd.Stderr = os.Stderr
	must(t, c.cmd.Start())
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill() // it may be gone
		_ = c.cmd.Wait()
	})
	return c
}

// awaitStopped returns when the process is stopped.
func (c *child) awaitStopped() {
	c.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.cmd.Process.Pid))
		must(c.t, err)
		state := stat[slices.Index(stat, ')')+2] // the name before it has no ")"
		if state == 'T' {
			return
		}
		if state == 'Z' || time.Now().After(deadline) {
			c.t.Fatalf("the child is not stopped: state %c", state)
		}
	}
}

// wakes lets the process go on and returns what it says in the end.
func (c *child) wakes() string {
	c.t.Helper()
	must(c.t, c.cmd.Process.Signal(syscall.SIGCONT))
	lines := bufio.NewScanner(c.out)
	for lines.Scan() {
		if said, ok := strings.CutPrefix(lines.Text(), "child: "); ok {
			return said
		}
	}
	c.t.Fatal("the child said nothing")
	return ""
}

// A process that is stopped inside of its transaction holds its key for MaxHold, and has
// nothing to commit when it wakes up.
func TestProcess_StoppedInItsTransaction(t *testing.T) {
	for at, says := range map[string]string{
		"in handler":                "failed, idle: true", // most likely its own fault
		crash.AfterClaim.String():   "again, idle: false",
		crash.AfterHandler.String(): "again, idle: false",
		crash.BeforeCommit.String(): "again, idle: false",
	} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			address := devtest.PostgresURL(t)
			db := migrate(t, openURL(t, address))
			c := startChild(t, address, "stop "+at)
			c.awaitStopped()
			b := newBox(t, db, Config{LockTimeout: 50 * time.Millisecond})
			wantOutcome(t, b.Apply(t.Context(), newer, effect("newer")), Busy) // it holds the key

			start := time.Now()
			patient := newBox(t, db, Config{LockTimeout: 20 * time.Second})
			wantOutcome(t, patient.Apply(t.Context(), newer, effect("newer")), Applied)
			if waited := time.Since(start); waited > 10*childHold { // a busy machine
				t.Errorf("the key was free after %v, want MaxHold (%v)", waited, childHold)
			}
			if said := c.wakes(); said != says {
				t.Errorf("the child: %s, want %s", said, says)
			}
			wantOutcome(t, patient.Apply(t.Context(), childMessage, effect("late")), Stale)
			wantEffects(t, db, "newer")
		})
	}
}

// A process that is stopped before its claim holds nobody off, and is refused when it wakes
// up: a successor has claimed with a greater token.
func TestProcess_StoppedBeforeItsClaim(t *testing.T) {
	address := devtest.PostgresURL(t)
	db := migrate(t, openURL(t, address))
	c := startChild(t, address, "stop before")
	c.awaitStopped()
	b := newBox(t, db, Config{LockTimeout: 50 * time.Millisecond})
	wantOutcome(t, b.Apply(t.Context(), newer, effect("newer")), Applied)
	if said := c.wakes(); said != "stale, idle: false" {
		t.Errorf("the child: %s, want stale", said)
	}
	wantEffects(t, db, "newer")
}

// A process that is killed at a point leaves what a transaction leaves that dies there by
// package inboxtest.
func TestProcess_Killed(t *testing.T) {
	for _, p := range []crash.Point{crash.AfterClaim, crash.AfterHandler, crash.BeforeCommit, crash.AfterCommit} {
		t.Run(p.String(), func(t *testing.T) {
			t.Parallel()
			address := devtest.PostgresURL(t)
			db := migrate(t, openURL(t, address))
			c := startChild(t, address, "kill "+p.String())
			_ = c.cmd.Wait() // says how it ended
			if status := c.cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != syscall.SIGKILL {
				t.Fatalf("the child ended with %v, want that it was killed", c.cmd.ProcessState)
			}
			want := Applied
			if p == crash.AfterCommit {
				want = Duplicate
			}
			b := newBox(t, db, Config{LockTimeout: 20 * time.Second})
			wantOutcome(t, b.Apply(t.Context(), childMessage, effect("child")), want)
			wantEffects(t, db, "child")
		})
	}
}
