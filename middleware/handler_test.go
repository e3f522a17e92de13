package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/middleware"
	"github.com/onceward/onceward/reentrant"
	"github.com/twmb/franz-go/pkg/kgo"
)

func trace(log *[]string, name string) middleware.Middleware {
	return func(next middleware.Handler) middleware.Handler {
		return middleware.HandlerFunc(func(ctx context.Context, ms []*middleware.Message) []error {
			*log = append(*log, "+"+name)
			defer func() { *log = append(*log, "-"+name) }()
			return next.Handle(ctx, ms)
		})
	}
}

func TestChain_FirstIsOutermost(t *testing.T) {
	var log []string
	h := middleware.Chain(answer(nil), trace(&log, "a"), trace(&log, "b"), middleware.Recover(), trace(&log, "c"))
	handle(t, h, messages(t, "1"))
	if want := []string{"+a", "+b", "+c", "-c", "-b", "-a"}; !slices.Equal(log, want) {
		t.Errorf("order = %v, want %v", log, want)
	}
}

func TestNewMessage(t *testing.T) {
	boom := errors.New("no order in it")
	tests := []struct {
		name     string
		identify middleware.Identify
		want     string
	}{
		{"no key", func(*kgo.Record) (middleware.Identity, error) { return middleware.Identity{ID: "x"}, nil }, "Identity.Key is empty"},
		{"no ID", func(*kgo.Record) (middleware.Identity, error) { return middleware.Identity{Key: "x"}, nil }, "Identity.ID is empty"},
		{"blank ID", func(*kgo.Record) (middleware.Identity, error) { return middleware.Identity{Key: "x", ID: " "}, nil }, "Identity.ID is empty"},
		{"empty further key", func(*kgo.Record) (middleware.Identity, error) {
			return middleware.Identity{Key: "x", ID: "y", Also: []string{""}}, nil
		}, "Identity.Also holds an empty name"},
		{"error", func(*kgo.Record) (middleware.Identity, error) { return middleware.Identity{}, boom }, "no order in it"},
		{"panic", func(*kgo.Record) (middleware.Identity, error) { panic("oh") }, "panic: oh"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := middleware.NewMessage(tt.identify, &kgo.Record{Topic: "orders", Partition: 3, Offset: 7})
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "orders/3 offset 7") {
				t.Errorf("error = %v, want %q and where the record is", err, tt.want)
			}
			if got := middleware.Classify(err); got != middleware.Fatal {
				t.Errorf("class = %v, want %v", got, middleware.Fatal)
			}
		})
	}
	m := messages(t, "order:1")[0]
	if m.Key != "order" || m.ID != "order:1" || m.Attempt != 1 || m.Record == nil {
		t.Errorf("message = %+v", m)
	}
}

func TestClassify(t *testing.T) {
	boom := errors.New("boom")
	tests := []struct {
		err  error
		want middleware.Class
	}{
		{nil, middleware.Decided},
		{boom, middleware.Retry},
		{middleware.Skip("not ours"), middleware.Decided},
		{middleware.Permanent(boom), middleware.Fatal},
		{fmt.Errorf("order 1: %w", middleware.Permanent(boom)), middleware.Fatal},
		{errors.Join(boom, middleware.Permanent(boom)), middleware.Fatal},
		{middleware.RetryAfter(time.Second, boom), middleware.Retry},
		{middleware.Stop(boom), middleware.Halt},
		{middleware.Stop(middleware.Permanent(boom)), middleware.Halt},
		{middleware.Busy(time.Second, boom), middleware.Uncharged},
		{&reentrant.BusyError{}, middleware.Uncharged},
		{fmt.Errorf("x: %w", &reentrant.LostError{}), middleware.Uncharged},
		{reentrant.ErrClosed, middleware.Uncharged},
		{context.Canceled, middleware.Uncharged},
		{fmt.Errorf("query: %w", context.DeadlineExceeded), middleware.Uncharged},
		{middleware.Permanent(context.Canceled), middleware.Fatal},
		{&middleware.PanicError{Value: middleware.Permanent(boom)}, middleware.Fatal},
		{&middleware.PanicError{Value: "boom"}, middleware.Retry},
	}
	for _, tt := range tests {
		if got := middleware.Classify(tt.err); got != tt.want {
			t.Errorf("Classify(%v) = %v, want %v", tt.err, got, tt.want)
		}
	}
	if d, ok := middleware.RetryDelay(fmt.Errorf("x: %w", middleware.RetryAfter(time.Minute, boom))); !ok || d != time.Minute {
		t.Errorf("RetryDelay = %v %v, want 1m", d, ok)
	}
	if d, ok := middleware.RetryDelay(&reentrant.BusyError{Left: time.Hour}); !ok || d != time.Second {
		t.Errorf("RetryDelay of a busy lock = %v %v, want 1s", d, ok)
	}
	if _, ok := middleware.RetryDelay(boom); ok {
		t.Error("RetryDelay of an error that asks for none = true")
	}
}

func TestRecordFunc_KeepsOutcomesApart(t *testing.T) {
	boom := errors.New("boom")
	both := make(chan struct{}, 2)
	h := middleware.RecordFunc(func(ctx context.Context, r *kgo.Record) error {
		switch string(r.Value) {
		case "fails":
			return boom
		case "panics":
			panic(boom)
		case "meets a", "meets b": // only side by side do they meet
			both <- struct{}{}
			for len(both) < 2 {
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(time.Millisecond):
				}
			}
		}
		return nil
	})
	ms := messages(t, "fails", "panics", "fine", "meets a", "meets b")
	for range 2 { // a failed message comes again
		clear := len(both)
		for range clear {
			<-both
		}
		errs := handle(t, h, ms)
		var pe *middleware.PanicError
		if errs[0] != boom || !errors.As(errs[1], &pe) || !errors.Is(errs[1], boom) || errs[2] != nil || errs[3] != nil || errs[4] != nil {
			t.Errorf("errors = %v", errs)
		}
		if pe != nil && !strings.Contains(string(pe.Stack), "handler_test.go") {
			t.Errorf("the stack of the panic does not show the handler:\n%s", pe.Stack)
		}
	}
}

func TestRecordFunc_EndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	started := make(chan struct{})
	h := middleware.RecordFunc(func(ctx context.Context, _ *kgo.Record) error {
		close(started)
		<-ctx.Done()
		return context.Cause(ctx)
	})
	go func() { <-started; cancel() }()
	if errs := h.Handle(ctx, messages(t, "1")); !errors.Is(errs[0], context.Canceled) {
		t.Errorf("error = %v, want %v", errs[0], context.Canceled)
	}
}

func TestOutcomes(t *testing.T) {
	boom := errors.New("boom")
	if got := middleware.Outcomes(nil, 2); len(got) != 2 || got[0] != nil || got[1] != nil {
		t.Errorf("Outcomes(nil) = %v", got)
	}
	if got := middleware.Outcomes([]error{nil, boom}, 2); got[1] != boom {
		t.Errorf("Outcomes = %v", got)
	}
	for _, err := range middleware.Outcomes([]error{nil}, 2) {
		if err == nil || !strings.Contains(err.Error(), "1 errors for 2 messages") {
			t.Errorf("Outcomes of a wrong length = %v, want an error for each", err)
		}
	}
}

func TestRecover(t *testing.T) {
	boom := errors.New("boom")
	h := middleware.Chain(middleware.HandlerFunc(func(context.Context, []*middleware.Message) []error { panic(boom) }), middleware.Recover())
	for i, err := range handle(t, h, messages(t, "1", "2")) {
		var pe *middleware.PanicError
		if !errors.As(err, &pe) || !errors.Is(err, boom) {
			t.Errorf("error %d = %v, want a PanicError", i, err)
		}
	}
	if errs := handle(t, middleware.Chain(answer(map[string]error{"1": boom}), middleware.Recover()), messages(t, "1", "2")); errs[0] != boom || errs[1] != nil {
		t.Errorf("errors = %v, want those of the handler", errs)
	}
}

func TestObserve(t *testing.T) {
	boom := errors.New("boom")
	var events []middleware.Event
	h := middleware.Chain(answer(map[string]error{"b": boom}), middleware.Observe(func(e middleware.Event) { events = append(events, e) }))
	errs := handle(t, h, messages(t, "a", "b"))
	if errs[0] != nil || errs[1] != boom {
		t.Errorf("errors = %v: Observe changed them", errs)
	}
	if len(events) != 2 || events[0].Class != middleware.Decided || events[1].Class != middleware.Retry || events[1].Err != boom || events[1].Message.Key != "b" {
		t.Errorf("events = %+v", events)
	}
}

func TestRecords(t *testing.T) {
	boom := errors.New("boom")
	var order []string
	fail := map[string]error{"a:2": boom, "b:1": middleware.Skip("no")}
	h := middleware.HandlerFunc(func(ctx context.Context, ms []*middleware.Message) []error {
		seen := map[string]bool{}
		errs := make([]error, len(ms))
		for i, m := range ms {
			if seen[m.Key] {
				t.Errorf("key %s twice in a batch", m.Key)
			}
			seen[m.Key] = true
			order = append(order, m.ID)
			errs[i] = fail[m.ID]
		}
		return errs
	})
	run := middleware.Records(func(r *kgo.Record) (middleware.Identity, error) {
		if string(r.Value) == "bad" {
			return middleware.Identity{}, boom
		}
		return identify(r)
	}, h)
	var rs []*kgo.Record
	for _, v := range []string{"a:1", "a:2", "b:1", "a:3", "b:2", "bad", "c:1"} {
		rs = append(rs, record(v))
	}
	errs := run(t.Context(), rs)
	want := []middleware.Class{middleware.Decided, middleware.Retry, middleware.Decided, middleware.Retry, middleware.Decided, middleware.Fatal, middleware.Decided}
	for i, err := range errs {
		if got := middleware.Classify(err); got != want[i] {
			t.Errorf("record %s: %v (%v), want %v", rs[i].Value, got, err, want[i])
		}
	}
	if !errors.Is(errs[3], middleware.ErrBehind) {
		t.Errorf("record behind a failed one: %v, want %v", errs[3], middleware.ErrBehind)
	}
	if want := []string{"a:1", "b:1", "c:1", "a:2", "b:2"}; !slices.Equal(order, want) {
		t.Errorf("handled %v, want %v", order, want)
	}
}

func TestNilArgumentsPanic(t *testing.T) {
	for name, f := range map[string]func(){
		"Chain":   func() { middleware.Chain(nil) },
		"Lock":    func() { middleware.Lock(nil) },
		"Inbox":   func() { middleware.Inbox(nil, middleware.TxFunc(nil)) },
		"Tx":      func() { middleware.Tx(nil, nil) },
		"Observe": func() { middleware.Observe(nil) },
		"Records": func() { middleware.Records(nil, nil) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s accepted nil", name)
				}
			}()
			f()
		}()
	}
}
