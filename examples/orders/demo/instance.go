package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// stopWithin bounds the end of a child that was asked to. It has 15 s itself.
const stopWithin = 20 * time.Second

// An instance is a child process that runs the service.
type instance struct {
	name string
	pid  int

	cmd      *exec.Cmd
	stdin    io.Closer
	log      *tail
	mayEnd   atomic.Bool   // its end is no surprise
	ended    chan struct{} // closed when the process is gone and all it reported was read
	endedErr error         // set before ended is closed
}

// startInstance starts a child. Its reports go to told, from a goroutine of its own; when
// it ends by itself, that goroutine calls died.
func startInstance(cfg childConfig, log io.Writer, told func(from string, r report), died func(error)) (*instance, error) {
	name := cfg.Service.Name
	fail := func(err error) (*instance, error) { return nil, fmt.Errorf("start instance %s: %w", name, err) }
	exe, err := os.Executable()
	if err != nil {
		return fail(err)
	}
	text, err := json.Marshal(cfg)
	if err != nil {
		return fail(err)
	}
	reports, theirs, err := os.Pipe()
	if err != nil {
		return fail(err)
	}
	defer theirs.Close()
	in := &instance{name: name, log: &tail{to: log}, ended: make(chan struct{})}
	in.cmd = exec.Command(exe, ChildCommand)
	in.cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	in.cmd.ExtraFiles = []*os.File{theirs} // reportFD
	in.cmd.Stderr = in.log
	// A group of its own: Ctrl-C on the terminal is for the parent, which then ends its
	// children in good order. And should the parent be killed while a child is stopped,
	// the kernel wakes the orphaned group with SIGHUP and SIGCONT.
	in.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if in.stdin, err = in.cmd.StdinPipe(); err == nil {
		err = in.cmd.Start()
	}
	if err != nil {
		reports.Close()
		return fail(err)
	}
	in.pid = in.cmd.Process.Pid
	go in.follow(reports, told, died)
	return in, nil
}

// follow reads reports until the child is gone.
func (in *instance) follow(reports io.ReadCloser, told func(string, report), died func(error)) {
	lines := bufio.NewScanner(reports)
	var bad error
	for lines.Scan() {
		var r report
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			bad = fmt.Errorf("report %q: %w", lines.Text(), err)
			continue
		}
		told(in.name, r)
	}
	reports.Close()
	err := errors.Join(bad, lines.Err(), in.cmd.Wait())
	if err != nil || !in.mayEnd.Load() {
		in.endedErr = fmt.Errorf("instance %s ended: %w; its last words:\n%s", in.name, orNil(err), in.log)
	}
	if !in.mayEnd.Load() {
		died(in.endedErr)
	}
	close(in.ended)
}

var errNoReason = errors.New("without an error")

func orNil(err error) error {
	if err == nil {
		return errNoReason
	}
	return err
}

func (in *instance) signal(sig syscall.Signal) error {
	if err := in.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("send %v to instance %s: %w", sig, in.name, err)
	}
	return nil
}

// kill ends the child with SIGKILL and returns when it is gone.
func (in *instance) kill() {
	in.mayEnd.Store(true)
	_ = in.cmd.Process.Kill() // fails if it is gone
	<-in.ended
}

// stop asks the child to end. It returns when it has, within a bound.
func (in *instance) stop(ctx context.Context) error {
	in.mayEnd.Store(true)
	_ = in.cmd.Process.Signal(syscall.SIGCONT) // it may be stopped
	in.stdin.Close()
	bound := time.NewTimer(stopWithin)
	defer bound.Stop()
	select {
	case <-in.ended:
		return in.endedErr
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-bound.C:
		return fmt.Errorf("instance %s did not stop within %v; its last words:\n%s", in.name, stopWithin, in.log)
	}
}

// A tail keeps the last lines that a child logged, and passes all of them on.
type tail struct {
	to io.Writer

	mu    sync.Mutex // guards lines
	lines []string
}

const tailLines = 8

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines = append(t.lines, strings.Split(strings.TrimRight(string(p), "\n"), "\n")...)
	t.lines = t.lines[max(0, len(t.lines)-tailLines):]
	return t.to.Write(p)
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.lines) == 0 {
		return "  (none)"
	}
	return "  " + strings.Join(t.lines, "\n  ")
}
