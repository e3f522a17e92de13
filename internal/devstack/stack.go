package devstack

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// ErrMissing is matched by the error of [Start] if a part was neither in the environment
// nor on the machine, and could not be fetched. Its text says what to install.
var ErrMissing = errors.New("devstack: missing")

// closeWithin bounds the wait for the supervisor's end: its own bound (stopWithin), and
// some more for a busy machine.
const closeWithin = stopWithin + 5*time.Second

// A Part is one server of a stack.
type Part struct {
	URL  string        // as in the environment: a URL, for Kafka host:port,host:port
	Rung string        // where it came from, for people
	Took time.Duration // from the start of the stack until it answered
	PID  int           // of the server; the supervisor's if it is part of that; 0 if not ours
}

// A Stack is the running servers. It is safe for concurrent use.
type Stack struct {
	// Parts by name; a part that was not asked for is absent. PID is the one that the
	// part had at the start, see [Stack.Restart] for later ones.
	Parts map[string]Part

	// Dir is the folder of everything that the servers write. It is removed at the end.
	// Empty if nothing was started.
	Dir string

	sup   *supervisor
	close sync.Once
	err   error // of closing
}

// Start starts the parts that cfg asks for, or finds them in the environment, and returns
// when all of them answer. It may take minutes the first time, if binaries have to be
// fetched, and about two seconds else; ctx ends the wait, and then nothing is left behind.
//
// An error that matches [ErrMissing] says what to install. The caller closes the stack; it
// ends anyway when the calling process does, or when the garbage collector finds that
// nobody refers to the Stack. No goroutine is left in the caller.
func Start(ctx context.Context, cfg Config) (*Stack, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("devstack: %w", err)
	}
	sup, err := startSupervisor(cfg)
	if err != nil {
		return nil, fmt.Errorf("devstack: start supervisor: %w", err)
	}
	// Without the pipe the supervisor stops what it had started and ends, which ends the
	// loop below.
	stop := context.AfterFunc(ctx, sup.hangUp)
	defer stop()
	for {
		r, err := sup.read()
		switch {
		case err == nil && r.Progress != "":
			cfg.Progress(r.Progress)
		case err == nil && r.Ready != nil && ctx.Err() == nil:
			return &Stack{Parts: r.Ready, Dir: r.Dir, sup: sup}, nil
		default:
			end := sup.end()
			if ctx.Err() != nil {
				return nil, fmt.Errorf("devstack: start: %w", context.Cause(ctx))
			}
			if err != nil {
				return nil, fmt.Errorf("devstack: supervisor: %w", cmp.Or(end, err))
			}
			return nil, r.asError()
		}
	}
}

// Env returns the parts' addresses as NAME=value, for [exec.Cmd].
func (s *Stack) Env() []string {
	var env []string
	for _, v := range []struct{ part, name string }{{Kafka, EnvKafka}, {Redis, EnvRedis}, {Postgres, EnvPostgres}} {
		if p, ok := s.Parts[v.part]; ok {
			env = append(env, v.name+"="+p.URL)
		}
	}
	return env
}

// Brokers returns the addresses of the Kafka brokers, nil without Kafka.
func (s *Stack) Brokers() []string {
	if p, ok := s.Parts[Kafka]; ok {
		return strings.Split(p.URL, ",")
	}
	return nil
}

// Kill ends a part as a crash does: nothing is written any more, and connections break.
// Redis and Apache Kafka get SIGKILL. Postgres gets SIGQUIT, its "immediate shutdown",
// since SIGKILL would leave its other processes behind. kfake and miniredis are closed.
// The part stays down until [Stack.Restart]; killing a dead part is no error. A part from
// the environment cannot be killed.
//
// ctx ends the wait, not the work.
func (s *Stack) Kill(ctx context.Context, part string) error {
	_, err := s.command(ctx, "kill", part)
	return err
}

// Restart kills a part and starts it again at the same address, with what it had on disk:
// Postgres with all that was committed, Kafka with all that was acknowledged, Redis empty
// unless [RedisConfig.Args] made it write. It returns when the part answers, with the new
// process id.
//
// ctx ends the wait, not the work.
func (s *Stack) Restart(ctx context.Context, part string) (pid int, err error) {
	r, err := s.command(ctx, "restart", part)
	return r.PID, err
}

func (s *Stack) command(ctx context.Context, op, part string) (report, error) {
	if p, ok := s.Parts[part]; !ok || p.PID == 0 {
		return report{}, fmt.Errorf("devstack: %s: %q is not a server of this stack", op, part)
	}
	return s.sup.call(ctx, command{Op: op, Part: part})
}

// Close stops the servers, removes their folder, and returns when that is done, within 15
// seconds. Later calls wait for the first and return its result.
func (s *Stack) Close() error {
	s.close.Do(func() {
		if err := s.sup.end(); err != nil {
			s.err = fmt.Errorf("devstack: close: %w", err)
		}
	})
	return s.err
}

// A supervisor is the parent's end of the supervisor process.
type supervisor struct {
	cmd *exec.Cmd
	out *os.File
	buf *bufio.Reader

	hangUp func() // closes the pipe that keeps the process alive; may be called again

	mu    sync.Mutex // one command at a time; guards in, seq, buf after the start
	in    *os.File
	seq   int
	noise bytes.Buffer // what it printed that is no report: a panic, most likely
}

func startSupervisor(cfg Config) (*supervisor, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	stdin, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer stdin.Close()
	out, stdout, err := os.Pipe()
	if err != nil {
		in.Close()
		return nil, err
	}
	defer stdout.Close()

	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), supervisorEnv+"=1",
		// In a binary built with -race, exit would sleep for a second.
		"GORACE=atexit_sleep_ms=0 "+os.Getenv("GORACE"))
	// All three are pipes of ours. With the caller's stderr, "go test" would wait for the
	// supervisor to end.
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, stdout
	// A session of its own: Ctrl-C and the end of a terminal are for the parent, which
	// may still need the servers while it shuts down.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		in.Close()
		out.Close()
		return nil, err
	}
	s := &supervisor{cmd: cmd, in: in, out: out, buf: bufio.NewReader(out)}
	s.hangUp = sync.OnceFunc(func() { in.Close() })
	line, err := json.Marshal(cfg)
	if err == nil {
		_, err = in.Write(append(line, '\n'))
	}
	if err != nil {
		return nil, errors.Join(err, s.end())
	}
	return s, nil
}

// read returns the next report. It waits for one until the process ends.
func (s *supervisor) read() (report, error) {
	for {
		line, err := s.buf.ReadBytes('\n')
		if len(line) > 0 {
			var r report
			if json.Unmarshal(line, &r) == nil {
				return r, nil
			}
			s.noise.Write(line)
		}
		if err != nil {
			return report{}, err
		}
	}
}

// call sends a command and waits for its reply or the end of ctx.
func (s *supervisor) call(ctx context.Context, c command) (report, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fail := func(err error) (report, error) {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return report{}, fmt.Errorf("devstack: %s %s: %w", c.Op, c.Part, err)
	}
	s.seq++
	c.Seq = s.seq
	line, err := json.Marshal(c)
	if err != nil {
		return fail(err)
	}
	if _, err := s.in.Write(append(line, '\n')); err != nil {
		return fail(err)
	}
	stop := context.AfterFunc(ctx, func() { s.out.SetReadDeadline(time.Unix(1, 0)) })
	defer func() {
		stop()
		s.out.SetReadDeadline(time.Time{})
	}()
	for {
		r, err := s.read()
		if err != nil {
			return fail(err)
		}
		if r.Seq != c.Seq { // of a call that did not wait for it
			continue
		}
		if r.Error != "" {
			return fail(errors.New(r.Error))
		}
		return r, nil
	}
}

// end makes the process end and waits for that. It returns what went wrong with it.
func (s *supervisor) end() error {
	s.hangUp() // before the mutex: a call that waits for its reply then fails
	s.mu.Lock()
	defer s.mu.Unlock()
	kill := time.AfterFunc(closeWithin, func() { s.cmd.Process.Kill() })
	for { // until it ends: it must not wait for us to read what it says last
		if _, err := s.read(); err != nil {
			break
		}
	}
	err := s.cmd.Wait()
	if !kill.Stop() && err != nil {
		err = fmt.Errorf("not done within %v: %w", closeWithin, err)
	}
	s.out.Close()
	if text := bytes.TrimSpace(s.noise.Bytes()); err != nil && len(text) > 0 {
		err = fmt.Errorf("%w\n%s", err, text)
	}
	return err
}
