package inbox

import (
	"context"
	"fmt"
	"testing"

	"github.com/jmoiron/sqlx"
)

// benchmarks compare a transaction of the inbox with the bare one, in one run.
func benchmarks(b *testing.B, f func(b *testing.B, db *sqlx.DB, box *Inbox)) {
	for _, driver := range []struct {
		name   string
		params []string
	}{{"text", nil}, {"binary", []string{"binary_parameters=yes"}}} {
		b.Run(driver.name, func(b *testing.B) {
			db := newDB(b, driver.params...)
			f(b, db, newBox(b, db, Config{}))
		})
	}
}

func BenchmarkApply(b *testing.B) {
	benchmarks(b, func(b *testing.B, db *sqlx.DB, box *Inbox) {
		b.Run("inbox", func(b *testing.B) {
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				n++
				id := fmt.Sprintf("%s-%d", b.Name(), n)
				m := Message{ID: id, Digest: []byte(id), Fences: []Fence{{id, 1}}}
				if res := box.Apply(b.Context(), m, effect(id)); res.Outcome != Applied {
					b.Fatal(res)
				}
			}
		})
		b.Run("bare", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				tx := db.MustBeginTx(b.Context(), nil)
				must(b, effect("x")(b.Context(), tx))
				must(b, tx.Commit())
			}
		})
	})
}

func BenchmarkApplyBatch64(b *testing.B) {
	benchmarks(b, func(b *testing.B, db *sqlx.DB, box *Inbox) {
		for _, failing := range []int{0, 1} {
			b.Run(fmt.Sprintf("inbox/failing=%d", failing), func(b *testing.B) {
				b.ReportAllocs()
				n := 0
				for b.Loop() {
					n++
					ms := messages(64)
					for i := range ms {
						ms[i].ID = fmt.Sprintf("%s-%d-%d", b.Name(), n, i)
					}
					box.ApplyBatch(b.Context(), ms, func(ctx context.Context, tx *sqlx.Tx, i int) error {
						if err := effect(ms[i].ID)(ctx, tx); err != nil || i >= failing {
							return err
						}
						return errBoom
					})
				}
				b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(64*n), "µs/message")
			})
		}
		b.Run("bare", func(b *testing.B) {
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				n++
				tx := db.MustBeginTx(b.Context(), nil)
				for range 64 {
					must(b, effect("x")(b.Context(), tx))
				}
				must(b, tx.Commit())
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(64*n), "µs/message")
		})
	})
}
