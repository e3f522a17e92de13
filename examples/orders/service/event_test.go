package service

import (
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

func TestIdentify(t *testing.T) {
	e := Event{Kind: Timeout, Order: 1001, Deadline: 1764460800}
	got, err := Identify(e.Record())
	if err != nil {
		t.Fatal(err)
	}
	if got.Key != "order:1001" || got.ID != "timeout:1001:1764460800" {
		t.Errorf("identity = %q, %q, want order:1001, timeout:1001:1764460800", got.Key, got.ID)
	}
	for name, other := range map[string]Event{
		"another kind":     {Remind, e.Order, e.Deadline},
		"another deadline": {e.Kind, e.Order, e.Deadline + 1},
	} {
		id, err := Identify(other.Record())
		if err != nil || id.ID == got.ID || id.Key != got.Key {
			t.Errorf("%s: identity = %q, %q (%v), want another ID and the same key", name, id.Key, id.ID, err)
		}
	}
}

func TestParseEvent_Refuses(t *testing.T) {
	for _, tt := range []struct{ value, want string }{
		{``, "event: EOF"},
		{`timeout`, "event: invalid character"},
		{`{"kind":"timeout","order":1,"deadline":1,"state":"x"}`, `unknown field "state"`},
		{`{"kind":"paid","order":1,"deadline":1}`, `kind is "paid", must be timeout or remind`},
		{`{"kind":"timeout","order":0,"deadline":1}`, "order is 0, must be at least 1"},
		{`{"kind":"timeout","order":1}`, "deadline is 0, must be seconds since 1970"},
	} {
		if _, err := Identify(&kgo.Record{Value: []byte(tt.value)}); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: error = %v, want %q in it", tt.value, err, tt.want)
		}
	}
}
