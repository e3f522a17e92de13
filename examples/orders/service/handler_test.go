package service

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/middleware"
)

// chain returns the handler of a guard, with what it was told.
func chain(t *testing.T, db *sqlx.DB, b *bank, guard Guard, hooks Hooks) middleware.Handler {
	t.Helper()
	box, err := inbox.New(db, inbox.Config{Consumer: "orders"})
	if err != nil {
		t.Fatal(err)
	}
	return NewHandler(HandlerParams{
		Config: Config{Guard: guard}, DB: db, Box: box, Locker: newLocker(t), Payments: b.client, Hooks: hooks.withDefaults(),
	})
}

func messages(t *testing.T, events ...Event) []*middleware.Message {
	t.Helper()
	var ms []*middleware.Message
	for i, e := range events {
		r := e.Record()
		r.Topic, r.Offset = "t", int64(i)
		m, err := middleware.NewMessage(Identify, r)
		if err != nil {
			t.Fatal(err)
		}
		ms = append(ms, m)
	}
	return ms
}

func timeoutOf(order int64) Event { return Event{Timeout, order, 7} }

func TestHandler_ClosesOnce(t *testing.T) {
	for _, guard := range Guards { // one after the other, all of them do
		t.Run(string(guard), func(t *testing.T) {
			db, b := migrated(t), newBank(t)
			place(t, db, 1, 2)
			h := chain(t, db, b, guard, Hooks{})
			for range 2 {
				errs := h.Handle(t.Context(), messages(t, timeoutOf(1), timeoutOf(2)))
				for i, err := range middleware.Outcomes(errs, 2) {
					if middleware.Classify(err) != middleware.Decided {
						t.Errorf("message %d: %v, want it decided", i, err)
					}
				}
			}
			for table, want := range map[string]int{"refunds": 2, "stock_moves": 2, "ledger": 2, "orders WHERE state = 'closed'": 2} {
				if got := count(t, db, "SELECT count(*) FROM "+table); got != want {
					t.Errorf("%d rows of %s, want %d", got, table, want)
				}
			}
			if got := b.calls(); got != 2 {
				t.Errorf("the payment service was asked %d times, want 2: nothing is asked for a closed order", got)
			}
		})
	}
}

func TestHandler_Reminds(t *testing.T) {
	db, b := migrated(t), newBank(t)
	place(t, db, 1)
	h := chain(t, db, b, Both, Hooks{})
	for range 2 {
		if err := middleware.Outcomes(h.Handle(t.Context(), messages(t, Event{Remind, 1, 7})), 1)[0]; err != nil {
			t.Fatal(err)
		}
	}
	if got := count(t, db, "SELECT count(*) FROM notices"); got != 1 {
		t.Errorf("%d notices, want 1", got)
	}
	if b.calls() != 0 || count(t, db, "SELECT count(*) FROM orders WHERE state = 'unpaid'") != 1 {
		t.Error("a reminder closed the order or asked for a refund")
	}
}

func TestHandler_UnknownOrder(t *testing.T) {
	db, b := migrated(t), newBank(t)
	h := chain(t, db, b, Both, Hooks{})
	for _, e := range []Event{timeoutOf(404), {Remind, 404, 7}} {
		err := middleware.Outcomes(h.Handle(t.Context(), messages(t, e)), 1)[0]
		if middleware.Classify(err) != middleware.Fatal || !strings.Contains(err.Error(), "there is no such order") {
			t.Errorf("%s: %v, want a permanent error", e.ID(), err)
		}
	}
	if got := count(t, db, "SELECT count(*) FROM inbox"); got != 0 {
		t.Errorf("%d rows in the inbox, want none", got)
	}
}

// The payment service fails for one message: it is tried again, and the others go on.
func TestRefund_FailsForOne(t *testing.T) {
	db, b := migrated(t), newBank(t)
	place(t, db, 1, 2, 3)
	b.refuse = timeoutOf(2).ID()
	h := chain(t, db, b, Both, Hooks{})
	errs := h.Handle(t.Context(), messages(t, timeoutOf(1), timeoutOf(2), timeoutOf(3)))
	if errs[0] != nil || errs[2] != nil {
		t.Errorf("errors = %v, want none for the neighbours", errs)
	}
	if middleware.Classify(errs[1]) != middleware.Retry || !strings.Contains(errs[1].Error(), "closed for today") {
		t.Errorf("error = %v, want that of the payment service, to be tried again", errs[1])
	}
	b.refuse = ""
	if err := middleware.Outcomes(h.Handle(t.Context(), messages(t, timeoutOf(2))), 1)[0]; err != nil {
		t.Errorf("error = %v, want none at the next try", err)
	}
	if got := count(t, db, "SELECT count(*) FROM refunds"); got != 3 {
		t.Errorf("%d refunds, want 3", got)
	}
}

// What was read early may be out of date, and the handler does not look again. This is
// what the guards are compared by.
func TestRefund_EarlyLookIsTrusted(t *testing.T) {
	for guard, want := range map[Guard]int{None: 2, Inbox: 1} {
		t.Run(string(guard), func(t *testing.T) {
			db, b := migrated(t), newBank(t)
			place(t, db, 1)
			rival := chain(t, db, b, guard, Hooks{})
			first := true
			h := chain(t, db, b, guard, Hooks{Holding: func(context.Context, *middleware.Message) {
				if !first {
					return
				}
				first = false
				if err := middleware.Outcomes(rival.Handle(context.Background(), messages(t, timeoutOf(1))), 1)[0]; err != nil {
					t.Error(err)
				}
			}})
			if err := middleware.Outcomes(h.Handle(t.Context(), messages(t, timeoutOf(1))), 1)[0]; err != nil {
				t.Error(err)
			}
			if got := count(t, db, "SELECT count(*) FROM refunds"); got != want {
				t.Errorf("%d refunds, want %d", got, want)
			}
		})
	}
}

func TestHandle_WithoutRefund(t *testing.T) {
	db := migrated(t)
	place(t, db, 1)
	h := middleware.Tx(db, middleware.TxFunc(handle))
	err := h.Handle(t.Context(), messages(t, timeoutOf(1)))[0]
	if middleware.Classify(err) != middleware.Halt {
		t.Errorf("error = %v, want one that stops the consumer: the chain is put together wrongly", err)
	}
}

func TestRefund_DatabaseAway(t *testing.T) {
	db, b := migrated(t), newBank(t)
	h := chain(t, db, b, None, Hooks{})
	gone := errors.New("gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(gone)
	errs := h.Handle(ctx, messages(t, timeoutOf(1), timeoutOf(2)))
	for i, err := range errs {
		if err == nil {
			t.Errorf("message %d is decided, want an error for each", i)
		}
	}
	if b.calls() != 0 {
		t.Error("a refund was asked for without a look at the order")
	}
}
