package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/onceward/onceward/examples/orders/service"
)

// thinkTime is how long a refund takes at the payment service. Rivals without a guard
// meet in it.
const thinkTime = 3 * time.Millisecond

// A payments is the payment service, and the only way by which children ask the parent
// for something. A gate makes it keep an instance waiting.
type payments struct {
	url    string
	server *http.Server
	served chan struct{} // closed when the server has ended

	marking func(context.Context, marking)

	mu      sync.Mutex // guards all below
	refunds map[string]string
	calls   int
	gates   map[gateKey]*gate
}

// A gateKey names who is kept waiting, and for what: the key of a refund, or markingPath.
type gateKey struct{ from, what string }

type gate struct {
	reached chan struct{} // closed when somebody stands in front of it
	open    chan struct{} // closed to let them pass
	once    sync.Once
}

// startPayments starts the server. marking is called for each call of [markingPath],
// before its gate.
func startPayments(marking func(context.Context, marking)) (*payments, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("payment service: %w", err)
	}
	p := &payments{
		url:     "http://" + l.Addr().String(),
		served:  make(chan struct{}),
		marking: marking,
		refunds: map[string]string{},
		gates:   map[gateKey]*gate{},
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /refunds", p.refund)
	mux.HandleFunc("POST "+markingPath, p.mark)
	p.server = &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	go func() {
		defer close(p.served)
		_ = p.server.Serve(l) // until close
	}()
	return p, nil
}

// close ends the server. Who stands in front of a gate gets no answer.
func (p *payments) close() {
	_ = p.server.Close()
	<-p.served
}

func (p *payments) refund(w http.ResponseWriter, r *http.Request) {
	var req service.RefundRequest
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil || req.Key == "" {
		http.Error(w, "must be a refund with a key", http.StatusBadRequest)
		return
	}
	payment := p.pay(req.Key)
	think := time.NewTimer(thinkTime)
	defer think.Stop()
	<-think.C
	if err := p.pass(r.Context(), gateKey{req.From, req.Key}); err != nil {
		return // nobody waits for the answer any more
	}
	json.NewEncoder(w).Encode(service.RefundAnswer{Payment: payment})
}

// pay makes a refund, or finds the one that was made for the key.
func (p *payments) pay(key string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls++
	if p.refunds[key] == "" {
		p.refunds[key] = fmt.Sprintf("refund-%d", len(p.refunds)+1)
	}
	return p.refunds[key]
}

func (p *payments) mark(w http.ResponseWriter, r *http.Request) {
	var m marking
	if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	p.marking(r.Context(), m)
	_ = p.pass(r.Context(), gateKey{m.From, markingPath}) // the answer goes to nobody then
}

func (p *payments) pass(ctx context.Context, key gateKey) error {
	p.mu.Lock()
	g := p.gates[key]
	if g == nil {
		g = p.gates[gateKey{what: key.what}] // for all instances
	}
	p.mu.Unlock()
	if g == nil {
		return nil
	}
	g.once.Do(func() { close(g.reached) })
	select {
	case <-g.open:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// shut makes those who ask for what wait, from one instance or (empty) from all. The
// function it returns lets them pass.
func (p *payments) shut(from, what string) (g *gate, open func()) {
	g = &gate{reached: make(chan struct{}), open: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	key := gateKey{from, what}
	p.gates[key] = g
	return g, sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.gates, key)
		close(g.open)
	})
}

// totals returns how often the service was asked for a refund, and how many it made.
func (p *payments) totals() (calls, refunds int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls, len(p.refunds)
}
