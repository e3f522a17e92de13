package devstack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// A process is a started command. It runs in a process group of its own and, where the
// kernel can, ends with the supervisor.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it ended; err is set before
	err  error
}

// spawn starts cmd. orphaned is the signal that it gets if the supervisor dies.
func spawn(cmd *exec.Cmd, cred *syscall.Credential, orphaned syscall.Signal) (*process, error) {
	cmd.SysProcAttr = sysProcAttr(cred, orphaned)
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel sends the signal when the thread that forked ends, not the process.
		// So the thread is kept for as long as the command runs, and then ends with this
		// goroutine.
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// kill ends the process and its group, and waits.
func (p *process) kill() {
	syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) // an error means that it is gone
	<-p.done
}

// stop sends the signals in turn, each with time to end after it, then kills.
func (p *process) stop(signals ...stopSignal) {
	for _, s := range signals {
		select {
		case <-p.done:
			return
		default:
		}
		p.cmd.Process.Signal(s.sig)
		p.cmd.Process.Signal(syscall.SIGCONT) // a paused one would not see it
		select {
		case <-p.done:
			return
		case <-time.After(s.wait):
		}
	}
	p.kill()
}

type stopSignal struct {
	sig  syscall.Signal
	wait time.Duration
}

// output runs cmd to its end and returns what it printed. The end of ctx kills it and all
// that it started.
func output(ctx context.Context, cmd *exec.Cmd, cred *syscall.Credential) (string, error) {
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	// A grandchild may hold the output open after the command's end.
	cmd.WaitDelay = time.Second
	name := filepath.Base(cmd.Path)
	p, err := spawn(cmd, cred, syscall.SIGKILL)
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		p.kill()
		return "", fmt.Errorf("%s: %w", name, context.Cause(ctx))
	}
	if p.err != nil {
		return "", errors.New(strings.TrimSpace(fmt.Sprintf("%s: %v\n%s", name, p.err, tail(out.Bytes()))))
	}
	return out.String(), nil
}

// A daemon is a server that is a process of its own.
type daemon struct {
	dir     string // its own folder, exists; the log is in it
	cred    *syscall.Credential
	ports   []int // empty before the first start, then fixed
	nPorts  int
	command func(ports []int) *exec.Cmd
	// ready asks the server at ports once; it must be sure to talk to process pid.
	ready func(ctx context.Context, ports []int, pid int) error

	stops    []stopSignal   // for an end in order
	crash    []stopSignal   // for an end at once, before SIGKILL
	orphaned syscall.Signal // sent by the kernel if the supervisor dies

	pick func(n int) ([]int, error) // freePorts, but for tests
	proc *process
}

// portTries bounds how often a server is started on other ports because somebody else
// took the chosen ones in the meantime.
const portTries = 5

func (d *daemon) start(ctx context.Context) error {
	if len(d.ports) > 0 {
		return d.startAt(ctx, d.ports)
	}
	pick := d.pick
	if pick == nil {
		pick = freePorts
	}
	for try := 1; ; try++ {
		ports, err := pick(d.nPorts)
		if err != nil {
			return err
		}
		err = d.startAt(ctx, ports)
		if err == nil {
			d.ports = ports
			return nil
		}
		if try == portTries || ctx.Err() != nil || !strings.Contains(d.logTail(), "ddress already in use") {
			return err
		}
	}
}

func (d *daemon) startAt(ctx context.Context, ports []int) (err error) {
	logFile, err := os.OpenFile(d.logPath(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer logFile.Close()
	cmd := d.command(ports)
	cmd.Stdout, cmd.Stderr = logFile, logFile
	if d.proc, err = spawn(cmd, d.cred, d.orphaned); err != nil {
		return err
	}
	notePID(filepath.Dir(d.dir), cmd.Process.Pid, d.orphaned)
	defer func() {
		if err != nil {
			d.proc.kill()
		}
	}()
	// A question ends with the process: if it lost its port, somebody who never answers
	// may listen there.
	running, ended := context.WithCancel(ctx)
	defer ended()
	go func(p *process) {
		select {
		case <-p.done:
			ended()
		case <-running.Done():
		}
	}(d.proc)
	// Servers do not tell when they are ready, so they are asked.
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		asked, cancel := context.WithTimeout(running, 2*time.Second)
		err := d.ready(asked, ports, cmd.Process.Pid)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-d.proc.done:
			return fmt.Errorf("%s ended (%v), its log:\n%s", filepath.Base(cmd.Path), cmd.ProcessState, d.logTail())
		case <-ctx.Done():
			return fmt.Errorf("%s was not ready: %w: %w, its log:\n%s", filepath.Base(cmd.Path), context.Cause(ctx), err, d.logTail())
		case <-tick.C:
		}
	}
}

func (d *daemon) kill() {
	if d.proc != nil {
		d.proc.stop(d.crash...)
	}
}

func (d *daemon) stop() {
	if d.proc != nil {
		d.proc.stop(d.stops...)
	}
}

func (d *daemon) pid() int {
	if d.proc == nil {
		return 0
	}
	return d.proc.cmd.Process.Pid
}

func (d *daemon) logPath() string { return filepath.Join(d.dir, "log") }

// logTail returns the end of the server's log.
func (d *daemon) logTail() string {
	f, err := os.Open(d.logPath())
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if fi, err := f.Stat(); err == nil && fi.Size() > 16<<10 {
		f.Seek(-16<<10, io.SeekEnd)
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return err.Error()
	}
	return tail(text)
}

// tail returns the last 20 lines of text.
func tail(text []byte) string {
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}

// freePorts returns n ports of 127.0.0.1 that nobody listens on at the moment.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close() // not before all are chosen, so that they differ
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
