package inbox

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/onceward/onceward/internal/devstack"
	"github.com/onceward/onceward/internal/devstack/devtest"
)

// A fault is what the proxy does with a statement.
type fault int

const (
	none      fault = iota
	cutBefore       // the connection breaks, the server never sees it
	cutAfter        // the server runs it, the connection breaks, nobody sees the answer
	swallow         // neither arrives, and nobody says so
	cutRace         // the connection breaks while the server may be at it
)

// A proxy stands between the driver and the server and harms one statement.
type proxy struct {
	ln     net.Listener
	target string
	wg     sync.WaitGroup

	statement []byte // the message of COMMIT or ROLLBACK alone, in upper case
	next      atomic.Int32
	flights   atomic.Int64 // to the server: what is sent before it answers is one
	choose    func() fault // for each statement, in place of next; set before the first

	mu    sync.Mutex
	conns map[net.Conn]bool // guarded by mu
}

// newProxy returns a proxy and a pool that goes through it, on the schema of db.
func newProxy(t *testing.T, address, statement string) (*proxy, *sqlx.DB) {
	t.Helper()
	u, err := url.Parse(address)
	must(t, err)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	p := &proxy{
		ln: ln, target: u.Host, statement: []byte("Q\x00\x00\x00" + string(rune(4+len(statement)+1)) + statement + "\x00"),
		conns: map[net.Conn]bool{},
	}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		ln.Close()
		p.cut()
		p.wg.Wait()
	})
	return p, openURL(t, p.address(t, address))
}

// address returns that of a server by way of the proxy.
func (p *proxy) address(t *testing.T, server string) string {
	t.Helper()
	u, err := url.Parse(server)
	must(t, err)
	u.Host = p.ln.Addr().String()
	return u.String()
}

// cut breaks all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.Close()
	}
}

func (p *proxy) track(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns[c] = true
}

func (p *proxy) accept() {
	for {
		client, err := p.ln.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			client.Close()
			continue
		}
		p.track(client)
		p.track(server)
		var drop, answered atomic.Bool
		answered.Store(true)
		p.wg.Go(func() { p.toServer(client, server, &drop, &answered) })
		p.wg.Go(func() {
			defer client.Close()
			defer server.Close()
			buf := make([]byte, 1<<16)
			for {
				n, err := server.Read(buf)
				if err != nil || drop.Load() {
					return
				}
				answered.Store(true)
				if _, err := client.Write(buf[:n]); err != nil {
					return
				}
			}
		})
	}
}

func (p *proxy) toServer(client, server net.Conn, drop, answered *atomic.Bool) {
	defer client.Close()
	defer server.Close()
	buf := make([]byte, 1<<16)
	for {
		n, err := client.Read(buf)
		if err != nil {
			return
		}
		if answered.Swap(false) {
			p.flights.Add(1)
		}
		if bytes.Contains(bytes.ToUpper(buf[:n]), p.statement) {
			f := fault(p.next.Swap(int32(none)))
			if p.choose != nil {
				f = p.choose()
			}
			switch f {
			case cutBefore:
				return
			case cutAfter:
				drop.Store(true)
			case cutRace:
				drop.Store(true)
				_, _ = server.Write(buf[:n])
				return
			case swallow:
				_, _ = io.Copy(io.Discard, client) // until the test ends it
				return
			}
		}
		if _, err := server.Write(buf[:n]); err != nil {
			return
		}
	}
}

func TestFault_CommitCutOff(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fault fault
		then  Outcome
	}{
		{"before it arrives", cutBefore, Applied},
		{"before the answer arrives", cutAfter, Duplicate},
	} {
		for _, n := range []int{1, 10} {
			t.Run(tt.name, func(t *testing.T) {
				address := devtest.PostgresURL(t)
				db := migrate(t, openURL(t, address))
				p, far := newProxy(t, address, "COMMIT")
				b := newBox(t, far, Config{})
				z := Message{ID: "z"} // so that the scope is known
				wantOutcome(t, b.Apply(t.Context(), z, effect("z")), Applied)

				s := newScript(t, messages(n))
				p.next.Store(int32(tt.fault))
				wantUnknown(t, tt.then, func() []Result { return b.ApplyBatch(t.Context(), s.ms, s.run) })
				wantEffects(t, db, append(ids(s.ms), "z")...)
			})
		}
	}
}

// An error of COMMIT that says nothing is an answer if the server is still there, and no
// answer if it is not.
func TestFault_StrangeErrorOfCommit(t *testing.T) {
	db := newDB(t)
	b := newBox(t, db, Config{})
	strange := errors.New("strange")
	for _, alive := range []bool{true, false} {
		tx, err := b.begin(t.Context())
		must(t, err)
		defer tx.rollback()
		if !alive {
			terminate(t, db, tx.tx)
		}
		if err := tx.commit(); (err == nil) != alive {
			t.Fatalf("COMMIT: %v", err)
		}
		e := &entry{id: "a"}
		err = b.notCommitted(tx, []*entry{e}, strange)
		if alive && (err != nil || e.result.Outcome != Failed || !errors.Is(e.result.Err, strange)) {
			t.Errorf("with the server alive: %v (%v), error %v, want failed", e.result.Outcome, e.result.Err, err)
		}
		if !alive && (!errors.Is(err, ErrUnknown) || e.result.Outcome != 0) {
			t.Errorf("with the server gone: %v, error %v, want ErrUnknown", e.result.Outcome, err)
		}
	}
}

// awaitLog is a logger that hands over its records.
type awaitLog chan slog.Record

func (h awaitLog) Enabled(context.Context, slog.Level) bool { return true }

func (h awaitLog) Handle(_ context.Context, r slog.Record) error { h <- r; return nil }
func (h awaitLog) WithAttrs([]slog.Attr) slog.Handler            { return h }
func (h awaitLog) WithGroup(string) slog.Handler                 { return h }

// The network swallows the COMMIT. The call returns all the same, and until the server
// learns of it the message is busy.
func TestFault_CommitSwallowed(t *testing.T) {
	address := devtest.PostgresURL(t)
	db := migrate(t, openURL(t, address))
	p, far := newProxy(t, address, "COMMIT")
	log := make(awaitLog, 1)
	b := newBox(t, far, Config{CommitTimeout: 200 * time.Millisecond, Logger: slog.New(log)})
	m := Message{ID: "a", Fences: []Fence{{"x", 1}}}
	wantOutcome(t, b.Apply(t.Context(), Message{ID: "z", Fences: m.Fences}, effect("z")), Applied)

	p.next.Store(int32(swallow))
	start := time.Now()
	res := b.Apply(t.Context(), m, effect("a"))
	wantOutcome(t, res, Again)
	if !errors.Is(res.Err, ErrUnknown) || time.Since(start) < 200*time.Millisecond {
		t.Errorf("error = %v after %v, want ErrUnknown after 200ms", res.Err, time.Since(start))
	}
	near := newBox(t, db, Config{LockTimeout: 50 * time.Millisecond})
	wantOutcome(t, near.Apply(t.Context(), m, effect("a")), Busy)

	p.cut()
	<-log // the call that nobody waited for has ended
	wantOutcome(t, newBox(t, db, Config{LockTimeout: 10 * time.Second}).Apply(t.Context(), m, effect("a")), Applied)
	wantEffects(t, db, "a", "z")
}

// A failed message is failed, whether or not the ROLLBACK is answered.
func TestFault_RollbackSwallowed(t *testing.T) {
	address := devtest.PostgresURL(t)
	migrate(t, openURL(t, address))
	p, far := newProxy(t, address, "ROLLBACK")
	log := make(awaitLog, 1)
	b := newBox(t, far, Config{CommitTimeout: 200 * time.Millisecond, Logger: slog.New(log)})
	p.next.Store(int32(swallow))
	res := b.Apply(t.Context(), Message{ID: "a"}, func(context.Context, *sqlx.Tx) error { return errBoom })
	wantOutcome(t, res, Failed)
	if !errors.Is(res.Err, errBoom) {
		t.Errorf("error = %v, want the handler's", res.Err)
	}
	p.cut()
	<-log
}

// A COMMIT under way is not stopped by the caller's context: neither by the driver, which
// would ask the server to cancel it, nor by database/sql, which would roll back.
func TestFault_ContextEndsInCommit(t *testing.T) {
	db := newDB(t)
	db.MustExec("CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock_shared(TG_RELID::int, 0); RETURN NULL; END $$")
	db.MustExec("CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON effect DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait()")
	b := newBox(t, db, Config{LockTimeout: time.Minute})
	gate := db.MustBegin()
	defer gate.Rollback()
	gate.MustExec("SELECT pg_advisory_xact_lock('effect'::regclass::int, 0)")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan Result, 1)
	go func() { done <- b.Apply(ctx, Message{ID: "a"}, effect("a")) }()
	awaitBlocked(t, db, 1)
	cancel()
	select {
	case res := <-done:
		t.Errorf("the COMMIT was given up: %v (%v)", res.Outcome, res.Err)
		return
	case <-time.After(200 * time.Millisecond): // long enough for a cancelled one to end
	}
	must(t, gate.Rollback())
	wantOutcome(t, <-done, Applied)
	wantEffects(t, db, "a")
}

// terminate ends the backend of a transaction from outside, and returns when it is gone.
func terminate(t testing.TB, db *sqlx.DB, tx *sqlx.Tx) {
	t.Helper()
	var pid int
	must(t, tx.Get(&pid, "SELECT pg_backend_pid()"))
	var ok bool
	must(t, db.Get(&ok, "SELECT pg_terminate_backend($1, 10000)", pid))
	if !ok {
		t.Fatal("the backend does not end")
	}
}

// once runs f in the first call only.
func once(f func(ctx context.Context, tx *sqlx.Tx) error) func(ctx context.Context, tx *sqlx.Tx) error {
	called := false
	return func(ctx context.Context, tx *sqlx.Tx) error {
		if called {
			return nil
		}
		called = true
		return f(ctx, tx)
	}
}

func TestFault_BackendKilledInHandler(t *testing.T) {
	t.Run("one message", func(t *testing.T) {
		db := newDB(t)
		b := newBox(t, db, Config{})
		res := b.Apply(t.Context(), Message{ID: "a"}, func(ctx context.Context, tx *sqlx.Tx) error {
			terminate(t, db, tx)
			return effect("a")(ctx, tx)
		})
		wantOutcome(t, res, Again)
		if !uncharged(res.Err) {
			t.Errorf("error = %v, must not be charged", res.Err)
		}
		wantOutcome(t, b.Apply(t.Context(), Message{ID: "a"}, effect("a")), Applied)
		wantEffects(t, db, "a")
	})
	t.Run("one message, error of its own", func(t *testing.T) {
		db := newDB(t)
		res := newBox(t, db, Config{}).Apply(t.Context(), Message{ID: "a"}, func(ctx context.Context, tx *sqlx.Tx) error {
			terminate(t, db, tx)
			return errBoom
		})
		wantOutcome(t, res, Failed)
		wantEffects(t, db)
	})
	t.Run("one message, error hidden", func(t *testing.T) {
		db := newDB(t)
		res := newBox(t, db, Config{}).Apply(t.Context(), Message{ID: "a"}, func(ctx context.Context, tx *sqlx.Tx) error {
			terminate(t, db, tx)
			_ = effect("a")(ctx, tx)
			return nil
		})
		wantOutcome(t, res, Again)
		wantEffects(t, db)
	})
	// It may be its doing or not. The others need not suffer: they run again at once.
	t.Run("batch", func(t *testing.T) {
		db := newDB(t)
		s := newScript(t, messages(20))
		s.bad[10] = func(ctx context.Context, tx *sqlx.Tx) error {
			terminate(t, db, tx)
			return effect("x")(ctx, tx)
		}
		s.bad[3] = fails
		got := s.apply(newBox(t, db, Config{}), db, map[int]Outcome{3: Failed, 10: Again})
		if !uncharged(got[10].Err) {
			t.Errorf("error = %v, must not be charged", got[10].Err)
		}
	})
	t.Run("batch, error of its own", func(t *testing.T) {
		db := newDB(t)
		s := newScript(t, messages(20))
		s.bad[10] = func(ctx context.Context, tx *sqlx.Tx) error {
			terminate(t, db, tx)
			return errBoom
		}
		got := s.apply(newBox(t, db, Config{}), db, map[int]Outcome{10: Failed})
		if !errors.Is(got[10].Err, errBoom) {
			t.Errorf("error = %v, want the handler's", got[10].Err)
		}
	})
	// Nobody has said anything, so nobody is to blame.
	t.Run("batch, error hidden", func(t *testing.T) {
		db := newDB(t)
		b := newBox(t, db, Config{})
		s := newScript(t, messages(20))
		s.bad[7] = once(func(ctx context.Context, tx *sqlx.Tx) error { // the last of its stride
			terminate(t, db, tx)
			return nil
		})
		for i, r := range b.ApplyBatch(t.Context(), s.ms, s.run) {
			if r.Outcome != Again || !uncharged(r.Err) {
				t.Errorf("outcome of %d = %v (%v), want again", i, r.Outcome, r.Err)
			}
		}
		wantRows(t, db, 0)
		s.apply(b, db, nil)
	})
}

// A holder that is frozen in its handler is ended by the server, and does not block its
// key. When it wakes up it cannot commit, and it is told that it took too long.
func TestFault_FrozenHolder(t *testing.T) {
	for name, wake := range map[string]func(ctx context.Context, tx *sqlx.Tx) error{
		"it goes on":      func(ctx context.Context, tx *sqlx.Tx) error { return effect("late")(ctx, tx) },
		"it returns nil":  func(context.Context, *sqlx.Tx) error { return nil },
		"it hides errors": func(ctx context.Context, tx *sqlx.Tx) error { _ = effect("late")(ctx, tx); return nil },
	} {
		for _, n := range []int{1, 6} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				db := newDB(t)
				frozen := newBox(t, db, Config{MaxHold: time.Second})
				other := newBox(t, db, Config{LockTimeout: time.Minute})
				s := newScript(t, messages(n))
				at := n / 2
				x := Message{ID: "x", Fences: []Fence{{s.ms[at].Fences[0].Resource, 2}}}
				s.bad[at] = once(func(ctx context.Context, tx *sqlx.Tx) error {
					// The rival waits for the fence until the server ends this transaction.
					wantOutcome(t, other.Apply(ctx, x, effect("rival")), Applied)
					return wake(ctx, tx)
				})
				got := frozen.ApplyBatch(t.Context(), s.ms, s.run)
				for i, r := range got {
					want := Applied
					if i == at {
						want = Failed
					}
					if r.Outcome != want {
						t.Errorf("outcome of %d = %v (%v), want %v", i, r.Outcome, r.Err, want)
					}
				}
				if !errors.Is(got[at].Err, ErrIdle) || uncharged(got[at].Err) {
					t.Errorf("error = %v, want ErrIdle, charged", got[at].Err)
				}
				wantEffects(t, db, append(ids(s.ms, at), "rival")...)
				// It has the older token.
				wantOutcome(t, frozen.Apply(t.Context(), s.ms[at], effect("late")), Stale)
			})
		}
	}
}

// A handler that takes long in the server is not idle, and is not blamed for a connection
// that breaks in another's second run.
func TestFault_LongIsNotIdle(t *testing.T) {
	db := newDB(t)
	s := newScript(t, messages(3))
	first := true
	s.bad[0] = func(ctx context.Context, tx *sqlx.Tx) error {
		if first {
			first = false
			return nil
		}
		terminate(t, db, tx)
		return effect("x")(ctx, tx)
	}
	s.bad[1] = once(func(ctx context.Context, tx *sqlx.Tx) error {
		_, err := tx.ExecContext(ctx, "SELECT pg_sleep(1.1)")
		return err
	})
	s.bad[2] = fails
	s.apply(newBox(t, db, Config{MaxHold: time.Second}), db, map[int]Outcome{0: Again, 2: Failed})
}

// Postgres crashes while handlers run, and comes back.
func TestFault_ServerRestarts(t *testing.T) {
	pg := devtest.OwnPostgres(t, devstack.PostgresConfig{})
	db := migrate(t, openURL(t, pg.URL))
	b := newBox(t, db, Config{})
	s := newScript(t, messages(10))
	s.bad[4] = once(func(ctx context.Context, tx *sqlx.Tx) error {
		pg.Kill()
		return effect("x")(ctx, tx)
	})
	for i, r := range b.ApplyBatch(t.Context(), s.ms, s.run) {
		if r.Outcome != Again || !uncharged(r.Err) {
			t.Errorf("outcome of %d = %v (%v), want again, uncharged", i, r.Outcome, r.Err)
		}
	}
	wantOutcome(t, b.Apply(t.Context(), Message{ID: "down"}, effect("down")), Again)

	pg.Restart()
	s.apply(b, db, nil)

	// A pool full of connections of the last server is found out without anybody's harm.
	conns := make([]*sqlx.Conn, 5)
	for i := range conns {
		c, err := db.Connx(t.Context())
		must(t, err)
		conns[i] = c
	}
	for _, c := range conns {
		c.Close()
	}
	if idle := db.Stats().Idle; idle < len(conns) {
		t.Fatalf("%d idle connections, want %d", idle, len(conns))
	}
	pg.Restart()
	wantOutcome(t, b.Apply(t.Context(), Message{ID: "m10"}, effect("m10")), Applied)
	s.ms = append(s.ms, Message{ID: "m10"})
	wantEffects(t, db, ids(s.ms)...)
}

// Without tables nothing is guessed either.
func TestFault_NoTables(t *testing.T) {
	db := open(t)
	b := newBox(t, db, Config{})
	for i, r := range b.ApplyBatch(t.Context(), messages(2), func(context.Context, *sqlx.Tx, int) error { panic("handler called") }) {
		if r.Outcome != Again || state(r.Err) != "42P01" {
			t.Errorf("outcome of %d = %v (%v), want again, 42P01", i, r.Outcome, r.Err)
		}
	}
}
