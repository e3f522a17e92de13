package inbox

import (
	"context"
	"fmt"
	"strconv"
	"time"
)

// firstTime is the least token that is taken for a time, in microseconds: September 2001.
// Numbers that others count with, such as versions, zxids and revisions, are smaller;
// nanoseconds are greater than any time, and so never too old.
const firstTime = 1_000_000_000_000_000

// fencePurgeSQL removes fences of a range of pages whose tokens are times before
// $3 microseconds ago. The claim refuses tokens of half that age already, so nobody
// needs them to be refused; and a claim that is at work raises the token of its row,
// which is looked at once more when the row is locked.
const fencePurgeSQL = `
DELETE FROM {inbox_fence} WHERE ctid = ANY (ARRAY(
  SELECT g.ctid FROM {inbox_fence} g
  WHERE g.ctid >= $1::text::tid AND g.ctid < $2::text::tid AND NOT g.parked
    AND g.token >= 1000000000000000 AND g.token < (extract(epoch FROM now()) * 1000000)::bigint - $3::bigint
  FOR UPDATE OF g SKIP LOCKED))`

// fenceWalk is the walk through the fences, of all scopes: scope 0 stands for them.
func (b *Inbox) fenceWalk(cfg PurgeConfig) *walk {
	retention := b.cfg.FenceRetention
	return newWalk(b, "{inbox_fence}",
		func(context.Context) (int64, error) { return 0, nil },
		max(cfg.Every, min(retention/16, 24*time.Hour)), cfg.RoundTime, fencePurgeSQL,
		func(int64) []any { return []any{microseconds(retention)} })
}

// nowSQL is the time in the form of a token.
const nowSQL = `SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint`

// lookAtAge gives Stale to the messages that were not claimed for no other reason than
// that a token is too old.
func (b *Inbox) lookAtAge(ctx context.Context, t *txn, es []*entry) error {
	var now int64
	for _, e := range es {
		if e.result.Outcome != Again {
			continue
		}
		for _, f := range e.fences {
			if f.token < firstTime {
				continue
			}
			if now == 0 {
				if err := t.tx.GetContext(ctx, &now, nowSQL); err != nil {
					return fmt.Errorf("ask for the time: %w", err)
				}
			}
			if f.token < now-(b.cfg.FenceRetention/2).Microseconds() {
				e.result = Result{Outcome: Stale, Err: &StaleError{e.id, f.name, f.token, now, true}}
				break
			}
		}
	}
	return nil
}

func microseconds(d time.Duration) string { return strconv.FormatInt(d.Microseconds(), 10) }
