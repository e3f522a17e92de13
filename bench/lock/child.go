package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/onceward/onceward/bench/internal/drive"
)

// Processes that compete for a lock are this program, started again. A child has
// one peer, does what it reads from its input, and ends with it.

// childEnv makes this program a child. It holds the name of the peer and the URL
// of the server, as JSON.
const childEnv = "ONCEWARD_BENCH_CHILD"

type childConfig struct{ Peer, URL string }

// An order to a child: Callers take the named lock again and again, and hold it each
// time for as long as Hold says, from Start on, as long as For says, and once at
// least.
type order struct {
	Name    string
	Callers int
	Hold    time.Duration
	Start   time.Time
	For     time.Duration
}

// A news of a child: first Held for the first time, if one caller runs once, then
// Turns or Error.
type news struct {
	Held  bool
	Turns []turn
	Error string
}

// A turn of one caller, in nanoseconds since 1970. All clocks are those of one
// machine, so turns of different processes can be compared.
type turn struct{ Asked, Got, Left, Released int64 }

// runAsChild does what a child does, and reports whether this process is one.
func runAsChild() bool {
	text := os.Getenv(childEnv)
	if text == "" {
		return false
	}
	out := json.NewEncoder(os.Stdout)
	err := func() error {
		var cfg childConfig
		if err := json.Unmarshal([]byte(text), &cfg); err != nil {
			return err
		}
		p, err := newPeer(cfg.Peer, cfg.URL)
		if err != nil {
			return err
		}
		defer p.close()
		// It ends with its input. rueidislock may not notice that anybody wants to end.
		orders := json.NewDecoder(os.Stdin)
		for {
			var o order
			if err := orders.Decode(&o); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return err
			}
			turns, err := o.follow(p, func() { _ = out.Encode(news{Held: true}) })
			if err != nil {
				return err
			}
			if err := out.Encode(news{Turns: turns}); err != nil {
				return err
			}
		}
	}()
	if err != nil {
		_ = out.Encode(news{Error: err.Error()})
	}
	return true
}

// follow does what o says. It calls held when the first caller has the lock for the
// first time.
func (o *order) follow(p *peer, held func()) ([]turn, error) {
	first := sync.OnceFunc(held)
	// What does not come back is cut off, as stuck: see drive.StuckAfter.
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	time.Sleep(time.Until(o.Start))
	end := time.Now().Add(o.For)
	giveUp := time.AfterFunc(o.For+drive.StuckAfter, cancel)
	defer giveUp.Stop()

	var (
		mu    sync.Mutex // guards what follows
		turns []turn
		errs  []error
		wg    sync.WaitGroup
	)
	for range o.Callers {
		wg.Go(func() {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			for again := true; again; again = time.Now().Before(end) {
				t := turn{Asked: time.Now().UnixNano()}
				err := p.lock(ctx, o.Name, func() {
					t.Got = time.Now().UnixNano()
					first()
					time.Sleep(o.Hold)
					t.Left = time.Now().UnixNano()
				})
				t.Released = time.Now().UnixNano()
				mu.Lock()
				turns = append(turns, t)
				if err != nil && t.Got > 0 { // who never had the lock is stuck, or gave up as it does by default
					errs = append(errs, err)
				}
				mu.Unlock()
				if ctx.Err() != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	return turns, errors.Join(errs...)
}

// A child is another process with one peer.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *json.Decoder
	enc *json.Encoder
}

func startChild(ctx context.Context, peer, url string) (*child, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cfg, err := json.Marshal(childConfig{Peer: peer, URL: url})
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, exe)
	cmd.Env = append(os.Environ(), childEnv+"="+string(cfg))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &child{cmd: cmd, in: in, out: json.NewDecoder(out), enc: json.NewEncoder(in)}, nil
}

// startChildren starts some children with the same peer.
func startChildren(ctx context.Context, n int, peer, url string) (children []*child, stop func(), err error) {
	stop = func() {
		for _, c := range children {
			c.stop()
		}
	}
	for range n {
		c, err := startChild(ctx, peer, url)
		if err != nil {
			stop()
			return nil, nil, err
		}
		children = append(children, c)
	}
	return children, stop, nil
}

// stop ends the child, if need be by force: all was measured already.
func (c *child) stop() {
	_ = c.in.Close()
	kill := time.AfterFunc(drive.StuckAfter, func() { _ = c.cmd.Process.Kill() })
	defer kill.Stop()
	_ = c.cmd.Wait()
}

func (c *child) order(o order) error { return c.enc.Encode(o) }

// held returns when the child has the lock.
func (c *child) held() error {
	n, err := c.read()
	if err == nil && !n.Held {
		err = errors.New("never got the lock")
	}
	return err
}

// turns returns what became of an order.
func (c *child) turns() ([]turn, error) {
	n, err := c.read()
	return n.Turns, err
}

func (c *child) read() (news, error) {
	var n news
	if err := c.out.Decode(&n); err != nil {
		return n, fmt.Errorf("child process: %w", err)
	}
	if n.Error != "" {
		return n, fmt.Errorf("child process: %s", n.Error)
	}
	return n, nil
}
