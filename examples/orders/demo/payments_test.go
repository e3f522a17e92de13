package demo

import (
	"context"
	"testing"
	"time"

	"github.com/onceward/onceward/examples/orders/service"
)

func startTestPayments(t *testing.T) *payments {
	t.Helper()
	p, err := startPayments(func(context.Context, marking) {})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.close)
	return p
}

// clientOf returns a client of an instance.
func clientOf(t *testing.T, p *payments, name string) *service.Payments {
	c := service.NewPayments(service.Config{Payments: p.url, Name: name})
	t.Cleanup(c.Close)
	return c
}

func TestPayments_OneRefundPerKey(t *testing.T) {
	p := startTestPayments(t)
	c := clientOf(t, p, "A")
	names := map[string]bool{}
	for _, key := range []string{"timeout:1:2", "timeout:1:2", "timeout:2:2"} {
		name, err := c.Refund(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		names[name] = true
	}
	if calls, refunds := p.totals(); calls != 3 || refunds != 2 || len(names) != 2 {
		t.Errorf("%d calls made %d refunds with the names %v, want 3, 2 and two", calls, refunds, names)
	}
}

func TestPayments_Gate(t *testing.T) {
	p := startTestPayments(t)
	gate, open := p.shut("A", "timeout:1:2")
	answered := make(chan error, 1)
	go func() {
		_, err := clientOf(t, p, "A").Refund(context.Background(), "timeout:1:2")
		answered <- err
	}()
	if err := gate.wait(t.Context(), "the call"); err != nil {
		t.Fatal(err)
	}
	// Another instance passes, and so does another key.
	if _, err := clientOf(t, p, "B").Refund(t.Context(), "timeout:1:2"); err != nil {
		t.Fatal(err)
	}
	if _, err := clientOf(t, p, "A").Refund(t.Context(), "timeout:2:2"); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-answered:
		t.Fatalf("answered with %v in front of a shut gate", err)
	default:
	}
	open()
	open() // no harm
	if err := <-answered; err != nil {
		t.Error(err)
	}
}

// Who asks for several things is in front of all gates at once.
func TestPayments_SeveralGates(t *testing.T) {
	p := startTestPayments(t)
	first, openFirst := p.shut("A", "x")
	second, openSecond := p.shut("", "y") // for all instances
	passed := make(chan error, 1)
	go func() {
		passed <- p.pass(context.Background(), gateKey{"A", "x"}, gateKey{"A", "y"}, gateKey{"A", "z"})
	}()
	for _, g := range []*gate{first, second} {
		if err := g.wait(t.Context(), "the call"); err != nil {
			t.Fatal(err)
		}
	}
	openSecond()
	select {
	case err := <-passed:
		t.Fatalf("passed with %v, though one gate is shut", err)
	case <-time.After(10 * time.Millisecond): // may only be too short to catch it
	}
	openFirst()
	if err := <-passed; err != nil {
		t.Error(err)
	}
}
