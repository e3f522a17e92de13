package consumer

import (
	"errors"
	"testing"
	"time"

	"github.com/onceward/onceward/middleware"
	"github.com/twmb/franz-go/pkg/kgo"
)

func anItem(attempt, waits int) *item {
	return &item{
		waits: waits,
		msg: &middleware.Message{
			Identity: middleware.Identity{Key: "k", ID: "i"}, Attempt: attempt,
			Record: &kgo.Record{Key: []byte("k"), Value: nil, Headers: []kgo.RecordHeader{{Key: "h", Value: []byte("v")}}},
		},
	}
}

func TestJudge(t *testing.T) {
	cfg := Config{RetryMin: 100 * time.Millisecond, RetryMax: 30 * time.Second}
	err := errors.New("no")
	for name, tt := range map[string]struct {
		it       *item
		err      error
		class    middleware.Class
		min, max time.Duration
		attempt  int
		waits    int
	}{
		"first failure":    {anItem(1, 0), err, middleware.Retry, 50 * time.Millisecond, 100 * time.Millisecond, 2, 0},
		"second failure":   {anItem(2, 0), err, middleware.Retry, 100 * time.Millisecond, 200 * time.Millisecond, 3, 0},
		"many failures":    {anItem(1e9, 0), err, middleware.Retry, 15 * time.Second, 30 * time.Second, 1e9 + 1, 0},
		"asks for a pause": {anItem(1, 0), middleware.RetryAfter(time.Hour, err), middleware.Retry, time.Hour, time.Hour, 2, 0},
		"busy":             {anItem(3, 0), middleware.Busy(100*time.Millisecond, err), middleware.Uncharged, 75 * time.Millisecond, 125 * time.Millisecond, 3, 1},
		"busy for long":    {anItem(3, 0), middleware.Busy(time.Hour, err), middleware.Uncharged, 750 * time.Millisecond, 1250 * time.Millisecond, 3, 1},
		"busy no more":     {anItem(3, 0), middleware.Busy(-1, err), middleware.Uncharged, 0, 0, 3, 1},
		"not at fault":     {anItem(3, 0), unfair{}, middleware.Uncharged, 3 * time.Millisecond, 7 * time.Millisecond, 3, 1},
		"again":            {anItem(3, 1), unfair{}, middleware.Uncharged, 7 * time.Millisecond, 13 * time.Millisecond, 3, 2},
		"for long":         {anItem(3, 1e9), unfair{}, middleware.Uncharged, 750 * time.Millisecond, 1250 * time.Millisecond, 3, 1e9 + 1},
	} {
		for range 100 {
			v := cfg.judge(tt.it, tt.err)
			if v.class != tt.class || v.delay < tt.min || v.delay > tt.max || v.next.Attempt != tt.attempt || v.waits != tt.waits || v.alone {
				t.Errorf("%s: class %v, delay %v, attempt %d, waits %d; want %v, %v to %v, %d, %d",
					name, v.class, v.delay, v.next.Attempt, v.waits, tt.class, tt.min, tt.max, tt.attempt, tt.waits)
				break
			}
		}
	}
}

// unfair is an error that is not the message's fault and names no pause.
type unfair struct{}

func (unfair) Error() string   { return "no" }
func (unfair) Uncharged() bool { return true }

func TestDetach_SharesNothingAndKeepsNil(t *testing.T) {
	r := anItem(1, 0).msg.Record
	c := detach(r)
	if c.Value != nil {
		t.Error("a nil value is not nil any more: tombstones would be lost")
	}
	c.Key[0], c.Headers[0].Value[0], c.Headers[0].Key = 'x', 'x', "x"
	if string(r.Key) != "k" || string(r.Headers[0].Value) != "v" || r.Headers[0].Key != "h" {
		t.Errorf("record changed: %+v", r)
	}
}
