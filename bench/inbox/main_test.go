package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/onceward/onceward/bench/internal/compare"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/internal/devstack"
	"github.com/onceward/onceward/internal/devstack/devtest"
)

// smoke is just enough for each part to do all that it does.
var smoke = size{rounds: 1, window: 50 * time.Millisecond, duplicates: 128, rows: 20 * fewRows, claims: 2} // rows that a purge does not get through within four windows

var targetLine = regexp.MustCompile(`^target inbox/[a-z]+/\S+ -?[0-9.]+ (>=|<=) [0-9.]+ (ok|short)$`)

// Every part runs through and prints its targets. How fast anything is depends on the
// machine, so no number is looked at.
func TestParts(t *testing.T) {
	targets := map[string]int{"single": 3, "batches": 6, "duplicates": 2, "rows": 2, "purge": 2}
	if len(targets) != len(parts) {
		t.Errorf("%d parts, want %d", len(parts), len(targets))
	}
	var out bytes.Buffer
	err := measure(t.Context(), smoke, compare.NewReport(&out, false, ""), t.Output(), func(string) bool { return true })
	if errors.Is(err, devstack.ErrMissing) && os.Getenv("ONCEWARD_REQUIRE") != "1" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	got := map[string]int{}
	for line := range strings.Lines(out.String()) {
		if !strings.HasPrefix(line, "target") {
			continue
		}
		if !targetLine.MatchString(strings.TrimSpace(line)) {
			t.Errorf("line %q does not look like a target", line)
			continue
		}
		got[strings.Split(line, "/")[1]]++
	}
	for part, want := range targets {
		if got[part] != want {
			t.Errorf("%d targets of %s, want %d, in\n%s", got[part], part, want, &out)
		}
	}
}

func TestFlags(t *testing.T) {
	for _, args := range [][]string{{"-rows", "-1"}, {"-rows", "10000"}, {"-rounds", "-1"}, {"single"}} {
		var out bytes.Buffer
		if err := run(t.Context(), args, &out, &out); err == nil {
			t.Errorf("flags %q were accepted", args)
		}
	}
}

// A measurement that did something else than it counts is an error.
func TestWrongEffectsAreFound(t *testing.T) {
	b := &bench{size: smoke, postgres: devtest.PostgresURL(t), schemas: 1000 * os.Getpid()} // others may use the same server
	for what, want := range map[string]string{"right": "", "twice": "the ledger has", "nothing": "the ledger has", "no row": "seen has"} {
		w, err := b.newWorld(t.Context(), libPQ, 4, inbox.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			w.db.MustExec(`DROP SCHEMA ` + w.schema + ` CASCADE`)
			w.db.Close()
		})
		first := true
		for range 2 { // what was right before does not make it right
			_, err = w.drive(t.Context(), b, 1, "seen", func(ctx context.Context, caller, turn int) (int, error) {
				m := feed(caller, 1, turn, 1, 0)[0]
				if first { // once is enough
					first = false
					return 1, w.wrong(ctx, m, what)
				}
				return 1, w.wrong(ctx, m, "right")
			})
			if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("%s: error = %v, want %q", what, err, want)
			}
		}
	}
}

// wrong takes a message as it should be, but for one mistake.
func (w *world) wrong(ctx context.Context, m message, mistake string) error {
	return w.inTx(ctx, func(tx *sqlx.Tx) error {
		times := map[string]int{"nothing": 0, "twice": 2}
		n, ok := times[mistake]
		if !ok {
			n = 1
		}
		for range n {
			if err := apply(ctx, tx, m.id, m.order); err != nil {
				return err
			}
		}
		if mistake == "no row" {
			return nil
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO seen (consumer, message_id) VALUES ('bench', $1)`, m.id)
		return err
	})
}

func TestFeed(t *testing.T) {
	const callers, many = 4, 256
	owner, ids := map[int64]int{}, map[string]bool{}
	fail := 0
	for caller := range callers {
		for turn := range 20 {
			orders := map[int64]bool{}
			for _, m := range feed(caller, callers, turn, many, 0.1) {
				if was, ok := owner[m.order]; ok && was != caller {
					t.Fatalf("order %d is of caller %d and of caller %d", m.order, was, caller)
				}
				owner[m.order] = caller
				if orders[m.order] || ids[m.id] {
					t.Fatalf("message %q of order %d comes twice", m.id, m.order)
				}
				orders[m.order], ids[m.id] = true, true
				if m.amount() == 0 {
					fail++
				}
			}
		}
	}
	if len(owner) != nOrders {
		t.Errorf("%d orders are in use, want %d", len(owner), nOrders)
	}
	if share := float64(fail) / float64(len(ids)); share < 0.08 || share > 0.12 {
		t.Errorf("%.3f of the messages fail, want 0.1", share)
	}
}
