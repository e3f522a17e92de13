package inbox

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
)

func newTasks(t *testing.T, db *sqlx.DB, cfg TasksConfig) *Tasks {
	t.Helper()
	tasks, err := NewTasks(newBox(t, db, Config{}), cfg)
	must(t, err)
	t.Cleanup(tasks.Close)
	return tasks
}

// otherSide is a payment service: it refuses a second request with one key.
type otherSide struct {
	mu       sync.Mutex
	requests int
	done     map[string]bool
}

func (o *otherSide) pay(_ context.Context, task Task) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.done == nil {
		o.done = map[string]bool{}
	}
	o.requests++
	o.done[task.Key] = true
	return nil
}

func (o *otherSide) happened(_ context.Context, task Task) (bool, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.done[task.Key], nil
}

// die is an effect after which the worker is never heard of again: its lease ends in
// the database, and it writes nothing down.
func (o *otherSide) die(t *testing.T, db *sqlx.DB, arrives bool) func(context.Context, Task) error {
	return func(ctx context.Context, task Task) error {
		if arrives {
			must(t, o.pay(ctx, task))
		}
		if _, err := db.Exec(`UPDATE inbox_task SET lease_until = clock_timestamp(), owner = gen_random_uuid()`); err != nil {
			t.Error(err)
		}
		return errors.New("killed")
	}
}

func TestTasks_OnceAndThenDuplicate(t *testing.T) {
	db := newDB(t)
	tasks := newTasks(t, db, TasksConfig{Unknown: Retry})
	var o otherSide
	m := Message{ID: "m", Digest: []byte("x")}
	if r := tasks.Do(t.Context(), m, o.pay); r.Outcome != Applied || r.Err != nil {
		t.Fatalf("first: %+v, want applied", r)
	}
	if r := tasks.Do(t.Context(), m, o.pay); r.Outcome != Duplicate {
		t.Errorf("second: %+v, want duplicate", r)
	}
	if r := tasks.box.Apply(t.Context(), m, effect("m")); r.Outcome != Duplicate {
		t.Errorf("by Apply: %+v, want duplicate", r)
	}
	m.Digest = []byte("y")
	if r := tasks.Do(t.Context(), m, o.pay); r.Outcome != Conflict {
		t.Errorf("other digest: %+v, want conflict", r)
	}
	if o.requests != 1 {
		t.Errorf("%d requests, want 1", o.requests)
	}
	wantTasks(t, db, 0)
}

func wantTasks(t *testing.T, db *sqlx.DB, want int) {
	t.Helper()
	var n int
	must(t, db.Get(&n, "SELECT count(*) FROM inbox_task"))
	if n != want {
		t.Errorf("%d tasks in the table, want %d", n, want)
	}
}

func TestTasks_PoliciesForUnknown(t *testing.T) {
	for _, arrives := range []bool{true, false} {
		for _, tt := range []struct {
			policy   Policy
			outcome  Outcome
			requests int // in all
		}{
			{Retry, Applied, 2},
			{Park, Parked, 1},
			{Ask, Applied, 1},
		} {
			db := newDB(t)
			var o otherSide
			cfg := TasksConfig{Unknown: tt.policy}
			if tt.policy == Ask {
				cfg.Happened = o.happened
			}
			tasks := newTasks(t, db, cfg)
			if r := tasks.Do(t.Context(), Message{ID: "m"}, o.die(t, db, arrives)); r.Outcome != Failed {
				t.Fatalf("the one that died: %+v, want failed", r)
			}
			wantTasks(t, db, 1)
			r := tasks.Do(t.Context(), Message{ID: "m"}, o.pay)
			want := tt.requests
			if !arrives {
				want = map[Policy]int{Retry: 1, Park: 0, Ask: 1}[tt.policy]
			}
			if r.Outcome != tt.outcome || o.requests != want {
				t.Errorf("policy %d, request arrived %v: %+v and %d requests, want %v and %d", tt.policy, arrives, r, o.requests, tt.outcome, want)
			}
			if again := tasks.Do(t.Context(), Message{ID: "m"}, o.pay); !again.Outcome.Decided() || o.requests != want {
				t.Errorf("policy %d: afterwards %+v and %d requests, want decided and %d", tt.policy, again, o.requests, want)
			}
		}
	}
}

func TestTasks_ResolveParked(t *testing.T) {
	db := newDB(t)
	var o otherSide
	tasks := newTasks(t, db, TasksConfig{Unknown: Park})
	if err := tasks.Resolve(t.Context(), "a", true); !errors.Is(err, ErrNotParked) {
		t.Errorf("Resolve of nothing = %v, want %v", err, ErrNotParked)
	}
	for id, happened := range map[string]bool{"a": true, "b": false} {
		tasks.Do(t.Context(), Message{ID: id}, o.die(t, db, happened))
		r := tasks.Do(t.Context(), Message{ID: id}, o.pay)
		var parked *ParkedError
		if r.Outcome != Parked || !errors.As(r.Err, &parked) || parked.Starts != 1 {
			t.Fatalf("%s: %+v, want parked after 1 start", id, r)
		}
		must(t, tasks.Resolve(t.Context(), id, happened))
		want := Duplicate
		if !happened {
			want = Applied
		}
		if r := tasks.Do(t.Context(), Message{ID: id}, o.pay); r.Outcome != want {
			t.Errorf("%s after it was resolved: %+v, want %v", id, r, want)
		}
	}
	if len(o.done) != 2 || o.requests != 2 {
		t.Errorf("%d requests for %d messages, want 2 for 2", o.requests, len(o.done))
	}
	wantTasks(t, db, 0)
}

// Who comes while somebody works on it is told how long to wait; a lease is renewed
// for as long as its worker lives.
func TestTasks_BusyWhileItRuns(t *testing.T) {
	db := newDB(t)
	const lease = 3 * time.Second // so that a busy machine does not lose it
	tasks := newTasks(t, db, TasksConfig{Unknown: Retry, Lease: lease})
	begun, goOn := make(chan struct{}), make(chan struct{})
	result := make(chan Result, 1)
	go func() {
		result <- tasks.Do(t.Context(), Message{ID: "m"}, func(ctx context.Context, _ Task) error {
			close(begun)
			<-goOn
			return ctx.Err()
		})
	}()
	<-begun
	other := newTasks(t, db, TasksConfig{Unknown: Retry})
	var first, now time.Time
	must(t, db.Get(&first, "SELECT lease_until FROM inbox_task"))
	for !now.After(first.Add(lease)) { // renewed for longer than a lease
		r := other.Do(t.Context(), Message{ID: "m"}, func(context.Context, Task) error { t.Error("ran twice at once"); return nil })
		var busy *BusyError
		if r.Outcome != Busy || !errors.As(r.Err, &busy) || busy.RetryIn() <= 0 || busy.RetryIn() > lease {
			t.Fatalf("while it runs: %+v, want busy for up to %v", r, lease)
		}
		must(t, db.Get(&now, "SELECT lease_until FROM inbox_task"))
	}
	close(goOn)
	if r := <-result; r.Outcome != Applied {
		t.Errorf("the one that ran: %+v, want applied", r)
	}
}

// A worker whose lease was taken over is told, and cannot complete.
func TestTasks_TakenOver(t *testing.T) {
	db := newDB(t)
	tasks := newTasks(t, db, TasksConfig{Unknown: Retry, Lease: time.Second})
	var second Result
	first := tasks.Do(t.Context(), Message{ID: "m"}, func(ctx context.Context, _ Task) error {
		db.MustExec(`UPDATE inbox_task SET lease_until = clock_timestamp()`)
		second = newTasks(t, db, TasksConfig{Unknown: Retry}).Do(t.Context(), Message{ID: "m"}, func(_ context.Context, task Task) error {
			if task.Starts != 2 {
				t.Errorf("starts = %d, want 2", task.Starts)
			}
			return nil
		})
		<-ctx.Done() // the next renewal finds out
		return nil
	})
	if second.Outcome != Applied {
		t.Errorf("the one that took over: %+v, want applied", second)
	}
	if first.Outcome != Again {
		t.Errorf("the one that was late: %+v, want again", first)
	}
	if r := tasks.Do(t.Context(), Message{ID: "m"}, nil); r.Outcome != Duplicate {
		t.Errorf("afterwards: %+v, want duplicate", r)
	}
}

// A late completion by the owner of a parked task makes it done.
func TestTasks_LateCompletionOfParked(t *testing.T) {
	db := newDB(t)
	tasks := newTasks(t, db, TasksConfig{Unknown: Park})
	r := tasks.Do(t.Context(), Message{ID: "m"}, func(context.Context, Task) error {
		db.MustExec(`UPDATE inbox_task SET lease_until = clock_timestamp()`)
		if r := newTasks(t, db, TasksConfig{Unknown: Park}).Do(t.Context(), Message{ID: "m"}, nil); r.Outcome != Parked {
			t.Errorf("meanwhile: %+v, want parked", r)
		}
		return nil
	})
	if r.Outcome != Applied {
		t.Errorf("late completion: %+v, want applied", r)
	}
	wantTasks(t, db, 0)
}

func TestTasks_ErrorsOfTheEffect(t *testing.T) {
	db := newDB(t)
	var o otherSide
	var asked atomic.Int64
	tasks := newTasks(t, db, TasksConfig{Unknown: Ask, Happened: func(ctx context.Context, task Task) (bool, error) {
		if asked.Add(1) == 1 {
			return false, errBoom
		}
		return o.happened(ctx, task)
	}})
	do := func(effect func(context.Context, Task) error) Result {
		return tasks.Do(t.Context(), Message{ID: "m"}, effect)
	}

	if r := do(func(context.Context, Task) error { return NotDone(errBoom) }); r.Outcome != Failed || !errors.Is(r.Err, errBoom) {
		t.Errorf("surely not done: %+v, want failed with its error", r)
	}
	wantTasks(t, db, 0)
	if r := do(func(context.Context, Task) error { panic(errBoom) }); r.Outcome != Failed || !errors.Is(r.Err, errBoom) {
		t.Errorf("panic: %+v, want failed with its value", r)
	}
	wantTasks(t, db, 1)
	if r := do(o.pay); r.Outcome != Again || !errors.Is(r.Err, ErrUnknown) || o.requests != 0 {
		t.Errorf("who is asked fails: %+v and %d requests, want again and none", r, o.requests)
	}
	if r := do(o.pay); r.Outcome != Applied || o.requests != 1 || asked.Load() != 2 {
		t.Errorf("then: %+v, %d requests, asked %d times, want applied, 1, 2", r, o.requests, asked.Load())
	}

	ctx, cancel := context.WithCancel(t.Context())
	if r := tasks.Do(ctx, Message{ID: "n"}, func(ctx context.Context, _ Task) error { cancel(); return ctx.Err() }); r.Outcome != Again || !errors.Is(r.Err, context.Canceled) {
		t.Errorf("context over: %+v, want again with its cause", r)
	}
	if r := tasks.Do(t.Context(), Message{ID: " "}, o.pay); r.Outcome != Failed {
		t.Errorf("blank ID: %+v, want failed", r)
	}
}

func TestTasks_StaleFence(t *testing.T) {
	db := newDB(t)
	tasks := newTasks(t, db, TasksConfig{Unknown: Retry})
	fenced := func(id string, token int64) Message {
		return Message{ID: id, Fences: []Fence{{Resource: "order:1", Token: token}}}
	}
	var o otherSide
	if r := tasks.Do(t.Context(), fenced("a", 7), o.pay); r.Outcome != Applied {
		t.Fatalf("%+v, want applied", r)
	}
	var stale *StaleError
	if r := tasks.Do(t.Context(), fenced("b", 6), o.pay); r.Outcome != Stale || !errors.As(r.Err, &stale) || o.requests != 1 {
		t.Errorf("older fence: %+v and %d requests, want stale and 1", r, o.requests)
	}
}

func TestNewTasks_RefusesEachMistake(t *testing.T) {
	box := newBox(t, open(t), Config{})
	happened := func(context.Context, Task) (bool, error) { return true, nil }
	for want, cfg := range map[string]TasksConfig{
		"Unknown is 0, must be Retry, Park or Ask": {},
		"Unknown is 4, must be Retry, Park or Ask": {Unknown: 4},
		"Happened must be set":                     {Unknown: Ask},
		"and only then":                            {Unknown: Park, Happened: happened},
		"Lease is 1ms, must be at least 1s":        {Unknown: Park, Lease: time.Millisecond},
	} {
		if _, err := NewTasks(box, cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("NewTasks(%+v) = %v, want %q", cfg, err, want)
		}
	}
}
