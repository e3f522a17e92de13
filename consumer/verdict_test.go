package consumer

import (
	"errors"
	"log/slog"
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
		cut      bool
	}{
		"first failure":            {anItem(1, 0), err, middleware.Retry, 50 * time.Millisecond, 100 * time.Millisecond, 2, 0, false},
		"second failure":           {anItem(2, 0), err, middleware.Retry, 100 * time.Millisecond, 200 * time.Millisecond, 3, 0, false},
		"many failures":            {anItem(1e9, 0), err, middleware.Retry, 15 * time.Second, 30 * time.Second, 1e9 + 1, 0, false},
		"asks for a pause":         {anItem(1, 0), middleware.RetryAfter(time.Hour, err), middleware.Retry, time.Hour, time.Hour, 2, 0, false},
		"busy":                     {anItem(3, 0), middleware.Busy(100*time.Millisecond, err), middleware.Uncharged, 75 * time.Millisecond, 125 * time.Millisecond, 3, 1, false},
		"busy for long":            {anItem(3, 0), middleware.Busy(time.Hour, err), middleware.Uncharged, 750 * time.Millisecond, 1250 * time.Millisecond, 3, 1, false},
		"busy no more":             {anItem(3, 0), middleware.Busy(-1, err), middleware.Uncharged, 0, 0, 3, 1, false},
		"not at fault":             {anItem(3, 0), unfair{}, middleware.Uncharged, 3 * time.Millisecond, 7 * time.Millisecond, 3, 1, false},
		"again":                    {anItem(3, 1), unfair{}, middleware.Uncharged, 7 * time.Millisecond, 13 * time.Millisecond, 3, 2, false},
		"for long":                 {anItem(3, 1e9), unfair{}, middleware.Uncharged, 750 * time.Millisecond, 1250 * time.Millisecond, 3, 1e9 + 1, false},
		"cut short":                {anItem(3, 0), err, middleware.Uncharged, 3 * time.Millisecond, 7 * time.Millisecond, 3, 1, true},
		"cut short, says how long": {anItem(3, 0), middleware.RetryAfter(0, err), middleware.Uncharged, 0, 0, 3, 1, true},
	} {
		for range 100 {
			v := cfg.judge(tt.it, tt.err, tt.cut)
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

func TestSettle_HandlerThatWasCutShortHasNotFailed(t *testing.T) {
	for _, cut := range []bool{false, true} {
		d := newDesk(t, nil)
		s := newSession(t.Context(), d.cfg, nil)
		s.disp, s.log = d.dispatcher, slog.New(slog.DiscardHandler)
		it := d.put("t", 0, map[int64]string{0: "a"})[0]
		b := d.next()
		want := 2
		if cut {
			want = 1
			d.interrupt([]*part{it.part}, ErrRevoked)
		}
		s.settle(b, []error{errors.New("aborted")}, nil, time.Millisecond)
		if it.msg.Attempt != want {
			t.Errorf("attempt after a failure, cut short %t, = %d, want %d", cut, it.msg.Attempt, want)
		}
		d.close()
	}
}

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
