package demo

import (
	"maps"
	"slices"
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/onceward/onceward/examples/orders/service"
	"github.com/onceward/onceward/internal/devstack/devtest"
)

// wellClosed makes two orders that are closed as they should be, one of them after a
// reminder.
const wellClosed = `
INSERT INTO periods VALUES ('p');
INSERT INTO orders (id, sku, qty, amount, period, deadline, state, announced_at) VALUES
  (1, 's', 2, 100, 'p', 'epoch', 'closed', now()), (2, 's', 3, 200, 'p', 'epoch', 'closed', now());
INSERT INTO stock_moves SELECT id, sku, qty FROM orders;
INSERT INTO refunds SELECT id, amount, 'r' FROM orders;
INSERT INTO ledger SELECT id, amount, period FROM orders;
INSERT INTO notices VALUES (1, 'epoch');
INSERT INTO inbox (key, scope, id) VALUES
  (gen_random_uuid(), 1, 'timeout:1:0'), (gen_random_uuid(), 1, 'timeout:2:0'), (gen_random_uuid(), 1, 'remind:1:0')`

// broken asks all questions and returns the answers that are not 0.
func broken(t *testing.T, db sqlx.Queryer) map[string]int64 {
	t.Helper()
	asked := append(slices.Clone(questions), inboxQuestion, question{name: "damage", sql: damageSQL}, question{name: "excess", sql: excessSQL})
	got := map[string]int64{}
	for _, q := range asked {
		var n int64
		if err := sqlx.Get(db, &n, q.sql); err != nil {
			t.Fatalf("%s: %v", q.name, err)
		}
		if n != 0 {
			got[q.name] = n
		}
	}
	return got
}

func TestQuestions(t *testing.T) {
	db := devtest.Postgres(t)
	if err := service.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	db.MustExec(wellClosed)
	if got := broken(t, db); len(got) != 0 {
		t.Fatalf("broken = %v, want nothing: all is well", got)
	}

	tests := []struct {
		name  string
		spoil string
		want  map[string]int64
	}{
		{
			"an order is open", `UPDATE orders SET state = 'unpaid' WHERE id = 1`,
			map[string]int64{"closed": 1, "inbox-row": 1},
		},
		{
			"refunded twice", `INSERT INTO refunds SELECT id, amount, 'again' FROM orders WHERE id = 1`,
			map[string]int64{"refunded-once": 1, "damage": 1},
		},
		{
			"not refunded", `DELETE FROM refunds`,
			map[string]int64{"refunded-once": 2, "damage": 2},
		},
		{
			"refunded too much", `UPDATE refunds SET amount = amount + 1 WHERE order_id = 2`,
			map[string]int64{"refunded-once": 1},
		},
		{
			"stock twice", `INSERT INTO stock_moves SELECT id, sku, qty FROM orders WHERE id = 1`,
			map[string]int64{"stock-once": 1, "damage": 1},
		},
		{
			"other stock", `UPDATE stock_moves SET sku = 'other' WHERE order_id = 1`,
			map[string]int64{"stock-once": 1},
		},
		{
			"a line too many", `INSERT INTO ledger SELECT id, amount, period FROM orders WHERE id = 1`,
			map[string]int64{"ledger-once": 1, "ledger-balances": 100, "damage": 1, "excess": 100},
		},
		{
			"a line too few", `DELETE FROM ledger WHERE order_id = 1`,
			map[string]int64{"ledger-once": 1, "ledger-balances": 100, "damage": 1, "excess": -100},
		},
		{
			"a line for the wrong order", `UPDATE ledger SET order_id = 2 WHERE order_id = 1`,
			map[string]int64{"ledger-once": 2, "damage": 2},
		},
		{
			"two notices", `INSERT INTO notices VALUES (1, 'epoch')`,
			map[string]int64{"reminded-once": 1},
		},
		{
			"no notice", `DELETE FROM notices`,
			map[string]int64{"reminded-once": 1, "inbox-row": 1},
		},
		{
			"an effect without a row", `DELETE FROM inbox WHERE id = 'timeout:1:0'`,
			map[string]int64{"inbox-row": 1},
		},
		{
			"a row without an effect", `INSERT INTO inbox (key, scope, id) VALUES (gen_random_uuid(), 1, 'timeout:3:0')`,
			map[string]int64{"inbox-row": 1},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tx := db.MustBegin()
			defer tx.Rollback()
			tx.MustExec(tt.spoil)
			if got := broken(t, tx); !maps.Equal(got, tt.want) {
				t.Errorf("broken = %v, want %v", got, tt.want)
			}
		})
	}
}

func TestFindings_Required(t *testing.T) {
	seen := []count{{"duplicates", 1}, {"takeovers", 1}, {"stale", 1}, {"scans-busy", 1}}
	tests := []struct {
		guard service.Guard
		want  int // invariants
	}{
		{service.None, 1}, {service.Lock, 3}, {service.Inbox, 2}, {service.Both, 5},
	}
	for _, tt := range tests {
		f := &findings{Guard: tt.guard, Counts: seen}
		f.required()
		if got := len(f.Invariants); got != tt.want || f.broken() != 0 {
			t.Errorf("guard %s: %d invariants, %d broken, want %d and none", tt.guard, got, f.broken(), tt.want)
		}
	}
	for i := range seen { // whatever was not seen breaks one
		f := &findings{Guard: service.Both, Counts: append(slices.Clone(seen[:i]), seen[i+1:]...)}
		f.required()
		if got := f.broken(); got != 1 {
			t.Errorf("without %s: %d broken, want 1", seen[i].Name, got)
		}
	}
}

func TestFindings_Observed(t *testing.T) {
	reentered := func(depths ...int) int64 {
		j := newJournal()
		for _, d := range depths {
			j.markings = append(j.markings, depthSeen{depth: d})
		}
		var f findings
		f.observed(j)
		return f.Invariants[0].Broken
	}
	for _, tt := range []struct {
		name   string
		depths []int
		want   int64
	}{
		{"never seen", nil, 1}, {"twice", []int{2, 2}, 0}, {"once", []int{2, 1}, 1}, {"gone", []int{0, 0}, 2},
	} {
		if got := reentered(tt.depths...); got != tt.want {
			t.Errorf("%s: broken = %d, want %d", tt.name, got, tt.want)
		}
	}
}

func TestFindings_Expected(t *testing.T) {
	broken := []invariant{{Name: "x", Broken: 1}}
	for _, tt := range []struct {
		name string
		f    findings
		want bool
	}{
		{"none, with damage", findings{Guard: service.None, Damage: 1, Invariants: broken}, true},
		{"lock, without damage", findings{Guard: service.Lock}, false},
		{"inbox, all well", findings{Guard: service.Inbox}, true},
		{"inbox, with damage", findings{Guard: service.Inbox, Damage: 1}, false},
		{"both, an invariant broken", findings{Guard: service.Both, Invariants: broken}, false},
	} {
		if got := tt.f.expected(); got != tt.want {
			t.Errorf("%s: expected = %v, want %v", tt.name, got, tt.want)
		}
	}
}
