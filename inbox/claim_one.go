package inbox

import "strconv"

// claimOneSQL is claimSQL for one message with one fence or none, without arrays: it
// says the same, for half of the time and a third of the planning, which with arrays
// the server does each time, even for a statement that is prepared: it guesses arrays of
// ten, so that a plan made for the one at hand seems worth it.
//
// The order is that of claimSQL: f is read by a filter of i, and s before both.
const claimOneSQL = `
WITH s AS MATERIALIZED (
  SELECT ` + limitsSQL + `,
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint - $13::bigint AS oldest,
    $10::bigint < (SELECT max(k.next) FROM {inbox_mark} k WHERE k.scope = $4::int AND k.topic = $8::uuid
      AND k.part = $9::int AND k.first <= $10::bigint) AS marked
), f AS (
  INSERT INTO {inbox_fence} AS g (resource, token)
  SELECT $11::uuid, $12::bigint FROM s
  WHERE $11::uuid IS NOT NULL AND ($12::bigint >= s.oldest OR $12::bigint < 1000000000000000)
  ON CONFLICT (resource) DO UPDATE SET token = EXCLUDED.token WHERE g.token <= EXCLUDED.token
  RETURNING g.parked
), i AS (
  INSERT INTO {inbox} (key, scope, id, fingerprint, topic, part, off)
  SELECT $5::uuid, $4::int, $6::text, $7::uuid, $8::uuid, $9::int, $10::bigint FROM s
  WHERE marked IS NOT TRUE AND ($11::uuid IS NULL OR EXISTS (SELECT FROM f))
  ON CONFLICT (key) DO NOTHING
  RETURNING key
)
SELECT CASE WHEN s.marked THEN -1 ELSE 1 END FROM s WHERE NOT EXISTS (SELECT FROM i)`

// claimOneNotedSQL goes on with claimOneSQL as claimNotedSQL does with claimSQL.
const claimOneNotedSQL = `
UNION ALL
SELECT 1000001 FROM s
WHERE EXISTS (SELECT FROM {inbox_attempt} a WHERE a.key = $5::uuid) OR EXISTS (SELECT FROM f WHERE parked)`

// claimStatement returns the claim of messages, with its arguments.
func (b *Inbox) claimStatement(scope int64, es []*entry) (string, []any) {
	if len(es) == 1 && len(es[0].fences) <= 1 {
		return b.sql.claimOne, b.claimOneArgs(scope, es[0])
	}
	return b.sql.claim, b.claimArgs(scope, es)
}

func (b *Inbox) claimOneArgs(scope int64, e *entry) []any {
	args := []any{
		b.limits[0], b.limits[1], b.limits[2],
		strconv.FormatInt(scope, 10), e.key.text(), readable(e.id), nil, nil, nil, nil, nil, nil,
		microseconds(b.cfg.FenceRetention / 2),
	}
	if e.digested {
		args[6] = e.fingerprint.text()
	}
	if p := e.position; p != nil {
		args[7], args[8], args[9] = uuid(p.Topic).text(), strconv.Itoa(int(p.Partition)), strconv.FormatInt(p.Offset, 10)
	}
	if len(e.fences) == 1 {
		args[10], args[11] = e.fences[0].resource.text(), strconv.FormatInt(e.fences[0].token, 10)
	}
	return args
}
