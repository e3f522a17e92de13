package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"

	"github.com/onceward/onceward/reentrant"
	"github.com/redis/go-redis/v9"
)

// A floor is a client that costs next to nothing: it sends what our own client sent
// once, byte by byte, again and again. What it makes the server do is what any
// client that runs the same scripts must.
type floor struct {
	conns []*floorConn
}

// floorConn sends the cycle of one caller.
type floorConn struct {
	net.Conn
	in               *bufio.Reader
	acquire, release recorded
}

// recorded are commands as they were sent. Owners in it come again with each cycle,
// which is fine after a release.
type recorded struct {
	bytes    []byte
	commands int
}

// newFloor records one cycle of AcquireEach and ReleaseEach for each caller.
func newFloor(ctx context.Context, url string, cfg reentrant.Config, names [][]string) (_ *floor, err error) {
	rec := &recorder{}
	opts := clientOptions(url)
	opts.Dialer = rec.dial
	rdb := redis.NewClient(opts)
	defer rdb.Close()
	l, err := newLocker(rdb, cfg)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	f := &floor{}
	defer func() {
		if err != nil {
			f.close()
		}
	}()
	for _, ns := range names {
		// Once before, so that connections and scripts are there.
		if err := cycleEach(ctx, l, ns); err != nil {
			return nil, err
		}
		rec.take()
		leases, errs := l.AcquireEach(ctx, ns)
		if err := errors.Join(errs...); err != nil {
			return nil, err
		}
		acquire := rec.take()
		if err := errors.Join(l.ReleaseEach(ctx, leases)...); err != nil {
			return nil, err
		}
		release := rec.take()
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", opts.Addr)
		if err != nil {
			return nil, err
		}
		f.conns = append(f.conns, &floorConn{Conn: conn, in: bufio.NewReaderSize(conn, 32<<10), acquire: acquire, release: release})
	}
	return f, nil
}

func (f *floor) close() {
	for _, c := range f.conns {
		_ = c.Close() // all was measured already
	}
}

// cycle takes and gives back the locks of a caller.
func (f *floor) cycle(caller int) error {
	c := f.conns[caller]
	if err := c.run(&c.acquire); err != nil {
		return fmt.Errorf("acquire: %w", err)
	}
	if err := c.run(&c.release); err != nil {
		return fmt.Errorf("release: %w", err)
	}
	return nil
}

func (c *floorConn) run(r *recorded) error {
	if _, err := c.Write(r.bytes); err != nil {
		return err
	}
	for range r.commands {
		if err := c.reply(); err != nil {
			return err
		}
	}
	return nil
}

// reply reads an array of numbers. The first is 1 if the server did what it was to.
func (c *floorConn) reply() error {
	n, err := c.number('*')
	for i := 0; err == nil && i < n; i++ {
		var v int
		if v, err = c.number(':'); err == nil && i == 0 && v != 1 {
			err = fmt.Errorf("answer is %d", v)
		}
	}
	return err
}

func (c *floorConn) number(kind byte) (int, error) {
	line, err := c.in.ReadSlice('\n')
	if err != nil {
		return 0, err
	}
	if line[0] != kind {
		return 0, fmt.Errorf("unexpected reply %q", line)
	}
	n := 0
	for _, d := range line[1 : len(line)-2] {
		if d < '0' || d > '9' {
			return strconv.Atoi(string(line[1 : len(line)-2]))
		}
		n = n*10 + int(d-'0')
	}
	return n, nil
}

// A recorder keeps what is written to the connections that it dials.
type recorder struct {
	mu   sync.Mutex // guards sent
	sent bytes.Buffer
}

func (r *recorder) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &recordedConn{Conn: conn, out: io.MultiWriter(r, conn)}, nil
}

// Write implements [io.Writer].
func (r *recorder) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sent.Write(b)
}

// take returns what was written since the last take.
func (r *recorder) take() recorded {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := bytes.Clone(r.sent.Bytes())
	r.sent.Reset()
	return recorded{bytes: b, commands: bytes.Count(b, []byte("\r\nevalsha\r\n"))}
}

type recordedConn struct {
	net.Conn
	out io.Writer
}

func (c *recordedConn) Write(b []byte) (int, error) { return c.out.Write(b) }
