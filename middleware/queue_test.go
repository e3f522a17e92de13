package middleware_test

import (
	"context"
	"errors"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib" // driver "pgx"
	"github.com/jmoiron/sqlx"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/internal/devstack/devtest"
	"github.com/onceward/onceward/middleware"
	"github.com/twmb/franz-go/pkg/kgo"
)

func TestInbox_QueueFunc(t *testing.T) {
	for _, driver := range []string{"postgres", "pgx"} {
		t.Run(driver, func(t *testing.T) {
			db := sqlx.MustConnect(driver, devtest.PostgresURL(t))
			t.Cleanup(func() { db.Close() })
			db.MustExec("CREATE TABLE effect (v text)")
			l, _ := newLocker(t)
			boom := errors.New("boom")
			bad := map[string]error{"b:1": boom, "c:1": errors.New("panic"), "d:1": middleware.Skip("not ours")}
			run := func(ctx context.Context, q *inbox.Queue, r *kgo.Record) error {
				v := string(r.Value)
				q.Exec("INSERT INTO effect VALUES ($1)", v)
				if v == "e:1" && bad["b:1"] != nil {
					q.ExecRows(1, "UPDATE effect SET v = v WHERE v = 'nobody'")
				}
				if err := bad[v]; err != nil && err.Error() == "panic" {
					panic(err)
				}
				return bad[v]
			}
			h := middleware.Chain(middleware.Inbox(newInbox(t, db), middleware.QueueFunc(run)), middleware.Lock(l))
			errs := handle(t, h, messages(t, "a:1", "b:1", "c:1", "d:1", "e:1"))
			var pe *middleware.PanicError
			var re *inbox.RowsError
			if errs[0] != nil || !errors.Is(errs[1], boom) || !errors.As(errs[2], &pe) || middleware.Classify(errs[3]) != middleware.Decided || !errors.As(errs[4], &re) {
				t.Errorf("errors = %v, want nil, boom, a panic, skipped, rows", errs)
			}
			wantEffects(t, db, map[string]int{"a:1": 1, "d:1": 1})
			clear(bad)
			for range 2 {
				for i, err := range handle(t, h, messages(t, "a:1", "b:1", "c:1", "d:1", "e:1")) {
					if err != nil {
						t.Errorf("further delivery of %d: %v", i, err)
					}
				}
			}
			wantEffects(t, db, map[string]int{"a:1": 1, "b:1": 1, "c:1": 1, "d:1": 1, "e:1": 1})
		})
	}
}
