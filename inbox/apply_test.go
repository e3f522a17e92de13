package inbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
)

func TestApply_AppliedThenDuplicate(t *testing.T) {
	drivers(t, func(t *testing.T, db *sqlx.DB) {
		b := newBox(t, db, Config{Tenant: "acme"})
		m := Message{
			ID: `order "1001" \ заказ`, Digest: []byte("v1"), Fences: []Fence{{"order:1001", 5}},
			Position: &Position{Topic: [16]byte{1, 15: 2}, Partition: 3, Offset: 1 << 40},
		}
		wantOutcome(t, b.Apply(t.Context(), m, effect("a")), Applied)
		wantOutcome(t, b.Apply(t.Context(), m, effect("a")), Duplicate)
		wantEffects(t, db, "a")

		var row struct {
			ID, Tenant, Consumer, Topic string
			Part                        int
			Off, Token                  int64
		}
		must(t, db.Get(&row, `SELECT i.id, s.tenant, s.consumer, i.topic, i.part, i.off, f.token
			FROM inbox i JOIN inbox_scope s ON s.id = i.scope, inbox_fence f`))
		want := row
		want.ID, want.Tenant, want.Consumer = `order "1001" \ \u0437\u0430\u043a\u0430\u0437`, "acme", "test"
		want.Topic, want.Part, want.Off, want.Token = "01000000-0000-0000-0000-000000000002", 3, 1<<40, 5
		if row != want {
			t.Errorf("row = %+v, want %+v", row, want)
		}
	})
}

func TestApply_ScopesAreApart(t *testing.T) {
	db := newDB(t)
	m := Message{ID: "a"}
	// "x" + "yz" and "xy" + "z" must not be one scope.
	for _, cfg := range []Config{{Consumer: "yz", Tenant: "x"}, {Consumer: "z", Tenant: "xy"}, {Consumer: "yz"}} {
		b := newBox(t, db, cfg)
		wantOutcome(t, b.Apply(t.Context(), m, effect(cfg.Tenant+"/"+cfg.Consumer)), Applied)
		wantOutcome(t, newBox(t, db, cfg).Apply(t.Context(), m, effect("again")), Duplicate)
	}
	wantEffects(t, db, "/yz", "x/yz", "xy/z")
}

func TestApply_Conflict(t *testing.T) {
	drivers(t, func(t *testing.T, db *sqlx.DB) {
		b := newBox(t, db, Config{})
		first := Message{ID: "a", Digest: []byte("v1")}
		wantOutcome(t, b.Apply(t.Context(), first, effect("a")), Applied)

		res := b.Apply(t.Context(), Message{ID: "a", Digest: []byte("v2")}, effect("b"))
		wantOutcome(t, res, Conflict)
		e := as[*ConflictError](t, res.Err)
		if e.Stored != hash("onceward inbox fingerprint", "v1") || e.Given != hash("onceward inbox fingerprint", "v2") {
			t.Errorf("fingerprints = %x, %x, want those of the digests", e.Stored, e.Given)
		}
		if !permanent(res.Err) || uncharged(res.Err) {
			t.Error("a conflict is not permanent")
		}
		// Without a digest on either side there is nothing to compare.
		wantOutcome(t, b.Apply(t.Context(), Message{ID: "a"}, effect("b")), Duplicate)
		wantOutcome(t, b.Apply(t.Context(), Message{ID: "c"}, effect("c")), Applied)
		wantOutcome(t, b.Apply(t.Context(), Message{ID: "c", Digest: []byte("v1")}, effect("c")), Duplicate)
		wantEffects(t, db, "a", "c")
	})
}

func TestApply_Stale(t *testing.T) {
	drivers(t, func(t *testing.T, db *sqlx.DB) {
		b := newBox(t, db, Config{})
		with := func(id string, token int64) Message { return Message{ID: id, Fences: []Fence{{"order:1", token}}} }
		wantOutcome(t, b.Apply(t.Context(), with("a", 7), effect("a")), Applied)
		wantOutcome(t, b.Apply(t.Context(), with("b", 7), effect("b")), Applied) // the same grant

		res := b.Apply(t.Context(), with("c", 6), effect("c"))
		wantOutcome(t, res, Stale)
		e := as[*StaleError](t, res.Err)
		if e.Resource != "order:1" || e.Token != 6 || e.Stored != 7 || !uncharged(res.Err) {
			t.Errorf("error = %+v, want order:1, token 6, stored 7, uncharged", e)
		}
		// What is decided is decided, whoever asks.
		wantOutcome(t, b.Apply(t.Context(), with("a", 6), effect("a")), Duplicate)
		// The refused one has not lowered the fence.
		wantOutcome(t, b.Apply(t.Context(), with("c", 6), effect("c")), Stale)
		wantOutcome(t, b.Apply(t.Context(), with("c", 8), effect("c")), Applied)
		wantEffects(t, db, "a", "b", "c")
	})
}

func TestApply_SeveralFences(t *testing.T) {
	drivers(t, func(t *testing.T, db *sqlx.DB) {
		b := newBox(t, db, Config{})
		wantOutcome(t, b.Apply(t.Context(), Message{ID: "a", Fences: []Fence{{"x", 5}, {"y", 5}, {"x", 5}}}, effect("a")), Applied)

		res := b.Apply(t.Context(), Message{ID: "b", Fences: []Fence{{"x", 6}, {"y", 4}}}, effect("b"))
		wantOutcome(t, res, Stale)
		if e := as[*StaleError](t, res.Err); e.Resource != "y" || e.Stored != 5 {
			t.Errorf("error = %+v, want resource y, stored 5", e)
		}
		wantRows(t, db, 1)
		// x has not been raised to 6 by the claim that was refused.
		wantOutcome(t, b.Apply(t.Context(), Message{ID: "b", Fences: []Fence{{"x", 5}, {"y", 6}}}, effect("b")), Applied)
		wantEffects(t, db, "a", "b")
	})
}

func TestApply_Failed(t *testing.T) {
	drivers(t, func(t *testing.T, db *sqlx.DB) {
		b := newBox(t, db, Config{})
		m := Message{ID: "a", Fences: []Fence{{"order:1", 5}}}
		res := b.Apply(t.Context(), m, func(ctx context.Context, tx *sqlx.Tx) error {
			return errors.Join(effect("a")(ctx, tx), errBoom)
		})
		wantOutcome(t, res, Failed)
		if !errors.Is(res.Err, errBoom) || uncharged(res.Err) || permanent(res.Err) {
			t.Errorf("error = %v, want the handler's, charged", res.Err)
		}
		wantEffects(t, db)
		wantRows(t, db, 0)
		wantOutcome(t, b.Apply(t.Context(), m, effect("a")), Applied)
	})
}

// A unique violation of the handler's own tables says nothing about the message.
func TestApply_OwnUniqueViolationIsNoDuplicate(t *testing.T) {
	db := newDB(t)
	db.MustExec("CREATE UNIQUE INDEX ON effect (id)")
	b := newBox(t, db, Config{})
	wantOutcome(t, b.Apply(t.Context(), Message{ID: "a"}, effect("x")), Applied)
	res := b.Apply(t.Context(), Message{ID: "b"}, effect("x"))
	wantOutcome(t, res, Failed)
	if state(res.Err) != "23505" {
		t.Errorf("error = %v, want SQLSTATE 23505", res.Err)
	}
}

type skip struct{}

func (skip) Error() string { return "nothing to do" }
func (skip) Skipped() bool { return true }

type halt struct{ error }

func (halt) Stopped() bool { return true }

func (h halt) Unwrap() error { return h.error }

func TestApply_Skipped(t *testing.T) {
	db := newDB(t)
	b := newBox(t, db, Config{})
	res := b.Apply(t.Context(), Message{ID: "a"}, func(ctx context.Context, tx *sqlx.Tx) error {
		return fmt.Errorf("look: %w", errors.Join(effect("kept")(ctx, tx), skip{}))
	})
	wantOutcome(t, res, Skipped)
	as[skip](t, res.Err)
	wantEffects(t, db, "kept")
	wantOutcome(t, b.Apply(t.Context(), Message{ID: "a"}, effect("a")), Duplicate)

	// The outermost class counts: this one asks to stop, whatever is inside.
	res = b.Apply(t.Context(), Message{ID: "b"}, func(context.Context, *sqlx.Tx) error { return halt{skip{}} })
	wantOutcome(t, res, Failed)
	as[halt](t, res.Err)
	wantRows(t, db, 1)
}

func TestApply_Panic(t *testing.T) {
	db := newDB(t)
	db.SetMaxOpenConns(1) // a transaction left open would be missed
	b := newBox(t, db, Config{})
	res := b.Apply(t.Context(), Message{ID: "a"}, func(ctx context.Context, tx *sqlx.Tx) error {
		must(t, effect("a")(ctx, tx))
		panic(errBoom)
	})
	wantOutcome(t, res, Failed)
	e := as[*PanicError](t, res.Err)
	if e.Value != any(errBoom) || !strings.Contains(string(e.Stack), "TestApply_Panic") || !errors.Is(res.Err, errBoom) {
		t.Errorf("error = %v, value %v, stack:\n%s", res.Err, e.Value, e.Stack)
	}
	wantEffects(t, db)
	wantRows(t, db, 0)
}

// t.FailNow in a handler ends its goroutine; the transaction must end, too.
func TestApply_Goexit(t *testing.T) {
	db := newDB(t)
	db.SetMaxOpenConns(1)
	b := newBox(t, db, Config{})
	t.Run("handler", func(t *testing.T) {
		b.Apply(t.Context(), Message{ID: "a"}, func(ctx context.Context, tx *sqlx.Tx) error {
			t.SkipNow()
			return nil
		})
		t.Error("the handler's goroutine went on")
	})
	wantRows(t, db, 0)
}

func TestApply_SwallowedError(t *testing.T) {
	drivers(t, func(t *testing.T, db *sqlx.DB) {
		b := newBox(t, db, Config{})
		hide := func(answer error) func(ctx context.Context, tx *sqlx.Tx) error {
			return func(ctx context.Context, tx *sqlx.Tx) error {
				must(t, effect("a")(ctx, tx))
				if _, err := tx.ExecContext(ctx, "INSERT INTO effect (id, n) VALUES ('a', -1)"); err == nil {
					t.Error("the statement did not fail")
				}
				return answer
			}
		}
		for _, answer := range []error{nil, skip{}} {
			res := b.Apply(t.Context(), Message{ID: "a"}, hide(answer))
			wantOutcome(t, res, Failed)
			if !errors.Is(res.Err, ErrSwallowed) || uncharged(res.Err) {
				t.Errorf("error = %v, want ErrSwallowed, charged", res.Err)
			}
		}
		wantEffects(t, db)
		wantRows(t, db, 0)
	})
}

func TestApply_DeferredConstraint(t *testing.T) {
	db := newDB(t)
	db.MustExec("ALTER TABLE effect ADD CONSTRAINT one UNIQUE (id) DEFERRABLE INITIALLY DEFERRED")
	b := newBox(t, db, Config{})
	wantOutcome(t, b.Apply(t.Context(), Message{ID: "a"}, effect("x")), Applied)
	res := b.Apply(t.Context(), Message{ID: "b"}, effect("x"))
	wantOutcome(t, res, Failed)
	if state(res.Err) != "23505" {
		t.Errorf("error = %v, want SQLSTATE 23505 of COMMIT", res.Err)
	}
	wantRows(t, db, 1)
}

func TestApply_HandlerEndsTransaction(t *testing.T) {
	for name, end := range map[string]func(tx *sqlx.Tx) error{
		"Rollback": func(tx *sqlx.Tx) error { return tx.Rollback() },
		"Commit":   func(tx *sqlx.Tx) error { return tx.Commit() },
	} {
		t.Run(name, func(t *testing.T) {
			db := newDB(t)
			b := newBox(t, db, Config{})
			for _, answer := range []error{nil, errBoom} {
				res := b.Apply(t.Context(), Message{ID: "a" + fmt.Sprint(answer)}, func(_ context.Context, tx *sqlx.Tx) error {
					must(t, end(tx))
					return answer
				})
				wantOutcome(t, res, Failed)
				if !errors.Is(res.Err, ErrEnded) || !errors.Is(res.Err, answer) && answer != nil {
					t.Errorf("error = %v, want ErrEnded and %v", res.Err, answer)
				}
			}
		})
	}
}

// By SQL it is seen when COMMIT meets no transaction. Whether the effect is there, the
// next try knows.
func TestApply_HandlerEndsTransactionBySQL(t *testing.T) {
	for statement, then := range map[string]Outcome{"COMMIT": Duplicate, "ROLLBACK": Applied} {
		t.Run(statement, func(t *testing.T) {
			db := newDB(t)
			b := newBox(t, db, Config{})
			res := b.Apply(t.Context(), Message{ID: "a"}, func(ctx context.Context, tx *sqlx.Tx) error {
				must(t, effect("a")(ctx, tx))
				_, err := tx.ExecContext(ctx, statement)
				return err
			})
			wantOutcome(t, res, Failed)
			if !errors.Is(res.Err, ErrSwallowed) && !errors.Is(res.Err, ErrEnded) { // lib/pq does not know which
				t.Errorf("error = %v, want ErrSwallowed or ErrEnded", res.Err)
			}
			wantOutcome(t, b.Apply(t.Context(), Message{ID: "a"}, effect("a")), then)
			wantEffects(t, db, "a")
		})
	}
}

func TestApply_Identity(t *testing.T) {
	// Nobody listens there, so an attempt to send a statement would be seen.
	db := openURL(t, "postgres://x@127.0.0.1:1/x?sslmode=disable&connect_timeout=1")
	b := newBox(t, db, Config{})
	fence := func(f ...Fence) Message { return Message{ID: "a", Fences: f} }
	at := func(p Position) Message { return Message{ID: "a", Position: &p} }
	topic := [16]byte{1}
	tests := []struct {
		name, field, text string
		m                 Message
	}{
		{"empty ID", "ID", "is empty", Message{}},
		{"blank ID", "ID", `is blank (" \t\u00a0")`, Message{ID: " \t\u00a0"}},
		{"long ID", "ID", "is 1025 bytes long, must be at most 1024", Message{ID: strings.Repeat("x", 1025)}},
		{"NUL in ID", "ID", `is "a\x00b", must not contain NUL`, Message{ID: "a\x00b"}},
		{"empty resource", "Fences[1].Resource", "is empty", fence(Fence{"x", 1}, Fence{"", 1})},
		{"long resource", "Fences[0].Resource", "is 1025 bytes long", fence(Fence{strings.Repeat("x", 1025), 1})},
		{"token 0", "Fences[0].Token", "is 0, must be at least 1", fence(Fence{"x", 0})},
		{"two tokens", "Fences[1]", `gives resource "x" a second token, 2 after 1`, fence(Fence{"x", 1}, Fence{"x", 2})},
		{"no topic", "Position.Topic", "is zero", at(Position{})},
		{"negative partition", "Position", "must not be negative", at(Position{topic, -1, 0})},
		{"negative offset", "Position", "must not be negative", at(Position{topic, 0, -1})},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			res := b.Apply(t.Context(), tt.m, func(context.Context, *sqlx.Tx) error { panic("handler called") })
			wantOutcome(t, res, Failed)
			e := as[*IdentityError](t, res.Err)
			if e.Field != tt.field || !strings.Contains(e.Problem, tt.text) || !permanent(res.Err) {
				t.Errorf("error = %v, want field %s, %q, permanent", e, tt.field, tt.text)
			}
		})
	}
	// The control: a good message does try.
	wantOutcome(t, b.Apply(t.Context(), Message{ID: "a"}, effect("a")), Again)
}

// The settings of the claim hold in its transaction, in the statement itself (see
// TestRace_Busy for the lock timeout), and not after it.
func TestApply_Settings(t *testing.T) {
	const ask = `SELECT current_setting('lock_timeout') || ' ' || current_setting('idle_in_transaction_session_timeout') || ' ' ||
		current_setting('synchronous_commit') || ' ' || current_setting('transaction_isolation')`
	for _, tt := range []struct {
		name, param, want string
		cfg               Config
	}{
		{"defaults", "", "2s 1min on read committed", Config{}},
		{"raised", "synchronous_commit=off", "2s 1min on read committed", Config{}},
		{"not lowered", "synchronous_commit=remote_apply", "2s 1min remote_apply read committed", Config{}},
		{"left alone", "synchronous_commit=off", "2s 1min off read committed", Config{AsyncCommit: true}},
		{"repeatable read", "default_transaction_isolation=repeatable read", "2s 1min on read committed", Config{}},
		{"of the configuration", "", "50ms 90s on read committed", Config{LockTimeout: 50 * time.Millisecond, MaxHold: 90 * time.Second}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var params []string
			if tt.param != "" {
				params = append(params, tt.param)
			}
			db := newDB(t, params...)
			db.SetMaxOpenConns(1) // the same session each time
			var before, after string
			must(t, db.Get(&before, ask))
			for _, m := range []Message{{ID: "no fence"}, {ID: "fence", Fences: []Fence{{"x", 1}}}} {
				res := newBox(t, db, tt.cfg).Apply(t.Context(), m, func(ctx context.Context, tx *sqlx.Tx) error {
					var got string
					must(t, tx.GetContext(ctx, &got, ask))
					if got != tt.want {
						t.Errorf("settings of %s = %q, want %q", m.ID, got, tt.want)
					}
					return nil
				})
				wantOutcome(t, res, Applied)
			}
			must(t, db.Get(&after, ask))
			if after != before {
				t.Errorf("settings of the session = %q, were %q", after, before)
			}
		})
	}
}
