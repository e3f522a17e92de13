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

// A gateKey names who is kept waiting, and for what: the key of a refund, markingPath, or
// what [claimOf] returns.
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
	mux.HandleFunc("POST "+claimingPath, p.claim)
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

func (p *payments) claim(w http.ResponseWriter, r *http.Request) {
	var c claiming
	if err := json.NewDecoder(r.Body).Decode(&c); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	keys := make([]gateKey, len(c.IDs))
	for i, id := range c.IDs {
		keys[i] = gateKey{c.From, claimOf(id)}
	}
	_ = p.pass(r.Context(), keys...) // as above
}

// pass waits in front of the gates until all are open, or ctx ends.
func (p *payments) pass(ctx context.Context, keys ...gateKey) error {
	var shut []*gate
	p.mu.Lock()
	for _, key := range keys {
		for _, k := range []gateKey{key, {what: key.what}} { // for one instance, for all
			if g := p.gates[k]; g != nil {
				shut = append(shut, g)
			}
		}
	}
	p.mu.Unlock()
	for _, g := range shut {
		g.once.Do(func() { close(g.reached) })
	}
	for _, g := range shut {
		select {
		case <-g.open:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
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

// wait waits until somebody stands in front of the gate.
func (g *gate) wait(ctx context.Context, what string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, waitAtMost, fmt.Errorf("not seen within %v", waitAtMost))
	defer cancel()
	select {
	case <-g.reached:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for %s: %w", what, context.Cause(ctx))
	}
}

// totals returns how often the service was asked for a refund, and how many it made.
func (p *payments) totals() (calls, refunds int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls, len(p.refunds)
}
