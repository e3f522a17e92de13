package redistest

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"
)

// A Fault is what a [Proxy] does to a command.
type Fault struct {
	// Drop lets the command take effect and then cuts the connection in place of the
	// reply.
	Drop bool

	// Late, if it is above 0, cuts the connection at once and lets the command take
	// effect after that time: after whatever the client does next.
	Late time.Duration
}

// A Proxy stands between clients and a server. It is safe for concurrent use.
type Proxy struct {
	Addr string // host:port of the proxy

	l      net.Listener
	faults func(args []string) Fault
	work   sync.WaitGroup

	mu      sync.Mutex // guards what follows
	target  string
	open    map[net.Conn]bool
	flowing chan struct{} // closed while bytes may pass
	closed  bool
}

// NewProxy returns a proxy in front of target, which ends with the test. faults, if not
// nil, is asked about each command; it is called by many goroutines at once.
func NewProxy(t testing.TB, target string, faults func(args []string) Fault) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{Addr: l.Addr().String(), l: l, faults: faults, target: target, open: map[net.Conn]bool{}, flowing: make(chan struct{})}
	close(p.flowing)
	p.work.Go(p.accept)
	t.Cleanup(p.Close)
	return p
}

// Close ends the proxy and all connections through it. What did not reach the server by
// then never will. It may be called more than once.
func (p *Proxy) Close() {
	p.l.Close()
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.Release()
	p.Cut()
	p.work.Wait()
}

// Cut breaks all connections. New ones are served.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.open {
		c.Close()
	}
}

// Hold makes a black hole: connections stay open, and new ones are accepted, but nothing
// passes, in either direction.
func (p *Proxy) Hold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.flowing:
		p.flowing = make(chan struct{})
	default: // holds already
	}
}

// Release ends [Proxy.Hold]. What was held back passes now.
func (p *Proxy) Release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.flowing:
	default:
		close(p.flowing)
	}
}

// Turn makes another server the target, and cuts the connections to the one before.
func (p *Proxy) Turn(target string) {
	p.mu.Lock()
	p.target = target
	p.mu.Unlock()
	p.Cut()
}

func (p *Proxy) accept() {
	for {
		client, err := p.l.Accept()
		if err != nil {
			return // closed
		}
		p.work.Go(func() { p.serve(client.(*net.TCPConn)) })
	}
}

// register keeps c for Cut and reports whether the proxy is still open.
func (p *Proxy) register(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open[c] = true
	return !p.closed
}

func (p *Proxy) done(c net.Conn) {
	c.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, c)
}

func (p *Proxy) serve(client *net.TCPConn) {
	defer p.done(client)
	if !p.register(client) {
		return
	}
	p.mu.Lock()
	target := p.target
	p.mu.Unlock()
	conn, err := net.DialTimeout("tcp", target, 10*time.Second)
	if err != nil {
		return
	}
	defer p.done(conn)
	if !p.register(conn) {
		return
	}
	server := conn.(*net.TCPConn)

	// What comes back. It is read to its end, also when the client does not want it any
	// more: see finish.
	var back sync.WaitGroup
	mute := make(chan struct{})
	quiet := sync.OnceFunc(func() { close(mute) })
	back.Go(func() {
		defer client.Close()
		buf := make([]byte, 32<<10)
		for {
			n, err := server.Read(buf)
			if err != nil {
				return
			}
			p.pass()
			select {
			case <-mute:
			default:
				_, _ = client.Write(buf[:n]) // it may be gone
			}
		}
	})
	// finish lets the server do all that it was sent: it reads up to the end of the
	// stream, does what it read, and closes. A connection that is closed with unread
	// replies in it would be reset, and what the server has not read lost.
	finish := func() {
		quiet()
		_ = server.CloseWrite()
		back.Wait()
	}
	defer finish()
	requests := bufio.NewReaderSize(client, 32<<10)
	for {
		raw, args, err := p.next(requests)
		if err != nil {
			return // the end of the client's requests, or of one of the connections
		}
		p.pass()
		var f Fault
		if p.faults != nil {
			f = p.faults(args)
		}
		last := f.Drop || f.Late > 0
		if last {
			quiet()
		}
		if f.Late > 0 {
			client.Close()
			time.Sleep(f.Late)
		}
		if _, err := server.Write(raw); err != nil || last {
			return
		}
	}
}

// pass returns when bytes may pass.
func (p *Proxy) pass() {
	p.mu.Lock()
	flowing := p.flowing
	p.mu.Unlock()
	<-flowing
}

// next reads what is to be sent next: a command if somebody wants to know about it,
// else whatever is there.
func (p *Proxy) next(r *bufio.Reader) (raw []byte, args []string, err error) {
	if p.faults == nil {
		if _, err := r.Peek(1); err != nil {
			return nil, nil, err
		}
		raw, err := r.Peek(r.Buffered())
		raw = bytes.Clone(raw)
		r.Discard(len(raw))
		return raw, nil, err
	}
	var buf bytes.Buffer
	number := func(mark byte) (int, error) {
		line, err := r.ReadBytes('\n')
		buf.Write(line)
		if err != nil {
			return 0, err
		}
		if line[0] != mark {
			return 0, fmt.Errorf("not a command: %q", line)
		}
		return strconv.Atoi(string(bytes.TrimSpace(line[1:])))
	}
	n, err := number('*')
	for range n {
		size, nerr := number('$')
		if nerr != nil {
			return nil, nil, nerr
		}
		at := buf.Len()
		if _, err := io.CopyN(&buf, r, int64(size+2)); err != nil {
			return nil, nil, err
		}
		args = append(args, string(buf.Bytes()[at:at+size]))
	}
	return buf.Bytes(), args, err
}
