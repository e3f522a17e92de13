package service

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// refundWithin bounds a call of the payment service.
const refundWithin = 30 * time.Second

// Payments is a client of the payment service. It is safe for concurrent use.
type Payments struct {
	url  string
	from string
	http *http.Client
}

// A RefundRequest asks for the refund of the deposit on an order.
type RefundRequest struct {
	Key  string `json:"key"`  // of idempotency: two requests with one key are one refund
	From string `json:"from"` // the instance that asks
}

// A RefundAnswer says that the refund was made, now or before.
type RefundAnswer struct {
	Payment string `json:"payment"`
}

// NewPayments returns a client.
func NewPayments(cfg Config) *Payments {
	transport := &http.Transport{MaxConnsPerHost: 64, MaxIdleConnsPerHost: 64}
	return &Payments{url: cfg.Payments, from: cfg.Name, http: &http.Client{Transport: transport}}
}

// Close closes idle connections.
func (p *Payments) Close() { p.http.CloseIdleConnections() }

// Refund asks for a refund and returns its name. It does not end with ctx, since
// turning away does not undo a refund that was asked for; it gives up after 30 s.
func (p *Payments) Refund(ctx context.Context, key string) (payment string, err error) {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), refundWithin, fmt.Errorf("no answer within %v", refundWithin))
	defer cancel()
	defer func() {
		if err != nil {
			err = fmt.Errorf("refund %q: %w", key, err)
		}
	}()
	body, err := json.Marshal(RefundRequest{Key: key, From: p.from})
	if err != nil {
		return "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url+"/refunds", bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	resp, err := p.http.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
	if err != nil {
		return "", err
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("payment service answered %s: %s", resp.Status, bytes.TrimSpace(text))
	}
	var answer RefundAnswer
	if err := json.Unmarshal(text, &answer); err != nil {
		return "", err
	}
	if answer.Payment == "" {
		return "", errors.New("payment service answered without the name of the payment")
	}
	return answer.Payment, nil
}
