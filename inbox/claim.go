package inbox

import (
	"context"
	"database/sql"
	"encoding/hex"
	"fmt"
	"strconv"

	"github.com/jmoiron/sqlx"
)

// limitsSQL sets the limits of a transaction, see [Inbox.limits] for its arguments.
const limitsSQL = `set_config('lock_timeout', $1::text, true) AS lock_timeout,
    set_config('idle_in_transaction_session_timeout', $2::text, true) AS max_hold,
    set_config('synchronous_commit', CASE WHEN $3::boolean AND current_setting('synchronous_commit') <> 'remote_apply'
      THEN 'on' ELSE current_setting('synchronous_commit') END, true) AS synchronous_commit`

// limits are the arguments of limitsSQL.
func (c Config) limits() [3]any {
	return [3]any{milliseconds(c.LockTimeout), milliseconds(c.MaxHold), strconv.FormatBool(!c.AsyncCommit)}
}

// claimSQL decides which messages may run. In: one element of each array per
// message, keys distinct, and the fences ($12, $13) and topics ($16) of all messages,
// distinct: messages have their positions, since many share them and the server takes
// its time to read a uuid.
// Out: the positions of messages that are NOT fresh, as negative numbers if they are
// marked; in the usual case no row.
//
// s sets the limits of the transaction on the way, which costs no trip and
// leaves nothing behind in the session. Both m and f read it, since PostgreSQL
// does not run a SELECT that nobody reads; and it is read before the first lock
// is taken, since both sort or store all their rows first. synchronous_commit is
// raised, never lowered: remote_apply waits for more than on does.
//
// f takes the fences, also those that are stale: ON CONFLICT locks the row before
// it looks at WHERE, so what look then reads cannot change any more.
//
// m.marked is whether the offset lies in a run that is marked, and NULL if that is
// not known: see Mark. The runs are read here and not before, since whoever was
// paused would miss what was marked and removed meanwhile; what is marked while the
// statement waits for a lock is not ripe before it is over.
//
// f leaves out tokens that are too old: see Config.FenceRetention.
//
// i inserts the rows of the messages whose fence passed. Lock order: all fences by
// resource, then all rows by key, so no two claims wait for each other. It is the
// ARRAYs that keep this order: an InitPlan is evaluated whole before the rows
// that it filters, while a join would leave the order to the planner. $14 is for
// a message with several fences, claimed alone: all of them must have passed.
//
// It reads by arbiter index only. A plan made while the tables were empty is
// still right when they are not.
//
// claimOneSQL must say the same.
const claimSQL = `
WITH s AS MATERIALIZED (
  SELECT ` + limitsSQL + `,
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint - $15::bigint AS oldest
), m AS MATERIALIZED (
  SELECT t.key, t.id, t.fingerprint, ($12::uuid[])[t.fence] AS resource, ($16::uuid[])[t.topic] AS topic, t.part, t.off, t.ord,
    t.off < (SELECT max(k.next) FROM {inbox_mark} k WHERE k.scope = $4::int AND k.topic = ($16::uuid[])[t.topic]
      AND k.part = t.part AND k.first <= t.off) AS marked
  FROM s CROSS JOIN
    unnest($5::uuid[], $6::text[], $7::uuid[], $8::int[], $9::int[], $10::int[], $11::bigint[])
    WITH ORDINALITY AS t(key, id, fingerprint, fence, topic, part, off, ord)
), f AS (
  INSERT INTO {inbox_fence} AS g (resource, token)
  SELECT t.resource, t.token FROM s CROSS JOIN unnest($12::uuid[], $13::bigint[]) AS t(resource, token)
  WHERE t.token >= s.oldest OR t.token < 1000000000000000
  ORDER BY t.resource
  ON CONFLICT (resource) DO UPDATE SET token = EXCLUDED.token WHERE g.token <= EXCLUDED.token
  RETURNING g.resource, g.parked
), i AS (
  INSERT INTO {inbox} (key, scope, id, fingerprint, topic, part, off)
  SELECT key, $4::int, id, fingerprint, topic, part, off FROM m
  WHERE cardinality(ARRAY(SELECT resource FROM f)) >= $14::int
    AND (resource IS NULL OR resource = ANY (ARRAY(SELECT resource FROM f)))
    AND marked IS NOT TRUE
  ORDER BY key
  ON CONFLICT (key) DO NOTHING
  RETURNING key
)
SELECT CASE WHEN m.marked THEN -m.ord ELSE m.ord END FROM m LEFT JOIN i USING (key) WHERE i.key IS NULL`

// notedFrom is added to the positions of claimNotedSQL, to tell them from the others.
const notedFrom = 1_000_000

// claimNotedSQL goes on with claimSQL where failures are counted. Out: the positions,
// plus notedFrom, of messages of which something is noted, fresh or not: they have a row
// in inbox_attempt, or a fence of theirs is parked.
const claimNotedSQL = `
UNION ALL
SELECT m.ord + 1000000 FROM m
WHERE m.key = ANY (ARRAY(SELECT a.key FROM {inbox_attempt} a WHERE a.key = ANY ($5::uuid[])))
  OR m.resource = ANY (ARRAY(SELECT resource FROM f WHERE parked))
  OR $14::int > 0 AND EXISTS (SELECT FROM f WHERE parked)`

// claim claims messages with distinct IDs, and returns those that may run. The
// others get their outcome. An error is of the whole transaction.
func (b *Inbox) claim(ctx context.Context, t *txn, scope int64, es []*entry) (fresh []*entry, err error) {
	statement, args := b.claimStatement(scope, es)
	ords, err := b.queryClaim(ctx, t, statement, args)
	if err != nil {
		return nil, fmt.Errorf("claim: %w", err)
	}
	if len(ords) == 0 {
		return es, nil
	}
	old := make([]*entry, 0, len(ords))
	is := make([]bool, len(es))
	for _, ord := range ords {
		if ord > notedFrom {
			es[ord-notedFrom-1].noted = true
			continue
		}
		if ord < 0 {
			ord = -ord
			es[ord-1].marked = true
		}
		old = append(old, es[ord-1])
		is[ord-1] = true
	}
	for i, e := range es {
		if !is[i] {
			fresh = append(fresh, e)
		}
	}
	if len(old) == 0 {
		return fresh, nil
	}
	if err := b.look(ctx, t, old); err != nil {
		return nil, fmt.Errorf("claim: %w", err)
	}
	return fresh, nil
}

func (b *Inbox) claimArgs(scope int64, es []*entry) []any {
	const id, uuids, small, large = 40, 32, 4, 16 // bytes of most values
	n := len(es)
	keys, ids, fingerprints, fenced := arrayOf(n, uuids), arrayOf(n, id), arrayOf(n, uuids), arrayOf(n, small)
	topic, parts, offs, fences, tokens := arrayOf(n, small), arrayOf(n, small), arrayOf(n, large), arrayOf(n, uuids), arrayOf(n, large)
	var topics array
	need := 0
	// The positions of fences and topics that are in the statement already.
	sent, known := make(map[uuid]int64, n), map[uuid]int64{}
	for _, e := range es {
		keys.uuid(e.key)
		ids.text(readable(e.id))
		fingerprints.uuidOrNull(e.fingerprint, e.digested)
		for _, f := range e.fences {
			if sent[f.resource] == 0 {
				sent[f.resource] = int64(len(sent)) + 1
				fences.uuid(f.resource)
				tokens.int(f.token)
			}
		}
		if len(e.fences) == 1 {
			fenced.int(sent[e.fences[0].resource])
		} else {
			fenced.null()
			need = len(e.fences)
		}
		if p := e.position; p != nil {
			if known[p.Topic] == 0 {
				known[p.Topic] = int64(len(known)) + 1
				topics.uuid(p.Topic)
			}
			topic.int(known[p.Topic])
			parts.int(int64(p.Partition))
			offs.int(p.Offset)
		} else {
			topic.null()
			parts.null()
			offs.null()
		}
	}
	return []any{
		b.limits[0], b.limits[1], b.limits[2],
		strconv.FormatInt(scope, 10), keys.String(), ids.String(), fingerprints.String(), fenced.String(),
		topic.String(), parts.String(), offs.String(), fences.String(), tokens.String(), strconv.Itoa(need),
		microseconds(b.cfg.FenceRetention / 2), topics.String(),
	}
}

// lookSQL tells apart what claimSQL said is not fresh. It is a statement of its
// own because a row that a rival commits while a statement waits for it is
// invisible to that statement; under READ COMMITTED the next one sees it.
//
// "= ANY" and no join: a plan made while the tables were new and tiny would turn
// a join into sequential scans, for as long as it is kept.
const lookSQL = `
SELECT key::text, fingerprint::text, NULL::bigint, result FROM {inbox} WHERE key = ANY ($1::uuid[])
UNION ALL
SELECT resource::text, NULL, token, NULL FROM {inbox_fence} WHERE resource = ANY ($2::uuid[])`

// look gives each message that was not fresh its outcome.
func (b *Inbox) look(ctx context.Context, t *txn, es []*entry) error {
	decided, tokens, err := b.lookUp(ctx, t.tx, es, true)
	if err != nil {
		return err
	}
	for _, e := range es {
		first, ok := decided[e.key]
		e.result = e.old(first, ok, tokens)
	}
	return b.lookAtAge(ctx, t, es)
}

// lookUp returns what the tables say of messages, and of their fences if asked to.
func (b *Inbox) lookUp(ctx context.Context, tx *sqlx.Tx, es []*entry, fences bool) (decided map[uuid]decision, tokens map[uuid]int64, err error) {
	keys, resources := arrayOf(len(es), 32), arrayOf(len(es), 32)
	for _, e := range es {
		keys.uuid(e.key)
		for i := 0; fences && i < len(e.fences); i++ {
			resources.uuid(e.fences[i].resource)
		}
	}
	rows, err := tx.QueryContext(ctx, b.sql.look, keys.String(), resources.String())
	if err != nil {
		return nil, nil, err
	}
	defer rows.Close()
	decided, tokens = map[uuid]decision{}, map[uuid]int64{}
	for rows.Next() {
		var name string
		var fingerprint *string
		var token *int64
		var answer []byte
		if err := rows.Scan(&name, &fingerprint, &token, &answer); err != nil {
			return nil, nil, err
		}
		id, err := parseUUID(name)
		if err != nil {
			return nil, nil, err
		}
		if token != nil {
			tokens[id] = *token
			continue
		}
		d := decision{answer: answer}
		if fingerprint != nil {
			d.digested = true
			if d.fingerprint, err = parseUUID(*fingerprint); err != nil {
				return nil, nil, err
			}
		}
		decided[id] = d
	}
	return decided, tokens, rows.Err()
}

// A decision is what the row of a decided message says.
type decision struct {
	fingerprint uuid
	digested    bool
	answer      []byte
}

// old returns the outcome of a message that is not fresh: its ID was decided
// before, or the fences stand at tokens.
func (e *entry) old(first decision, decided bool, tokens map[uuid]int64) Result {
	switch {
	case decided && e.digested && first.digested && first.fingerprint != e.fingerprint:
		return Result{Outcome: Conflict, Err: &ConflictError{e.id, e.fingerprint, first.fingerprint}}
	case decided: // even if the fence is stale: it will be no more decided with another
		return Result{Outcome: Duplicate, Answer: first.answer}
	case e.marked: // and its row may be gone
		return Result{Outcome: Duplicate}
	}
	for _, f := range e.fences {
		if stored := tokens[f.resource]; stored > f.token {
			return Result{Outcome: Stale, Err: &StaleError{e.id, f.name, f.token, stored, false}}
		}
	}
	return e.again(errPurged)
}

// busySQL finds the fences that somebody holds, without waiting for any. It is
// for a transaction of its own that is rolled back: the locks that it gets are
// for a moment, and are not worth a flush.
const busySQL = `
WITH free AS MATERIALIZED (
  SELECT resource FROM {inbox_fence} WHERE resource = ANY ($1::uuid[]) FOR UPDATE SKIP LOCKED
)
SELECT resource::text FROM {inbox_fence}
WHERE resource = ANY ($1::uuid[]) AND resource NOT IN (SELECT resource FROM free)`

// setBusyApart gives Busy to the messages of which somebody holds a fence. It
// finds nobody if the claim was in the way of an ID, or of a fence that is in the
// table for the first time: neither row can be seen before it is committed.
func (b *Inbox) setBusyApart(ctx context.Context, es []*entry) error {
	var resources array
	for _, e := range es {
		for _, f := range e.fences {
			resources.uuid(f.resource)
		}
	}
	t, err := b.begin(ctx)
	if err != nil {
		return err
	}
	defer t.rollback()
	var names []string
	if err := t.tx.SelectContext(ctx, &names, b.sql.busy, resources.String()); err != nil {
		return fmt.Errorf("look for busy resources: %w", err)
	}
	held, err := uuidSet(names)
	if err != nil {
		return err
	}
	for _, e := range es {
		for _, f := range e.fences {
			if held[f.resource] {
				e.result = b.busy(e, f.name)
				break
			}
		}
	}
	return nil
}

// unclaimSQL gives back the rows of messages that failed behind a savepoint.
const unclaimSQL = `DELETE FROM {inbox} WHERE key = ANY ($1::uuid[])`

func (b *Inbox) unclaim(ctx context.Context, t *txn, es []*entry) error {
	if _, err := t.tx.ExecContext(ctx, b.sql.unclaim, keysOf(es)); err != nil {
		return fmt.Errorf("give back claims: %w", err)
	}
	return nil
}

func queryInts(ctx context.Context, tx *sqlx.Tx, statement string, args ...any) (ns []int, err error) {
	rows, err := tx.QueryContext(ctx, statement, args...)
	if err != nil {
		return nil, err
	}
	return scanInts(rows)
}

func scanInts(rows *sql.Rows) (ns []int, err error) {
	defer rows.Close()
	for rows.Next() {
		var n int
		if err := rows.Scan(&n); err != nil {
			return nil, err
		}
		ns = append(ns, n)
	}
	return ns, rows.Err()
}

func uuidSet(names []string) (map[uuid]bool, error) {
	set := make(map[uuid]bool, len(names))
	for _, name := range names {
		id, err := parseUUID(name)
		if err != nil {
			return nil, err
		}
		set[id] = true
	}
	return set, nil
}

func parseUUID(s string) (u uuid, err error) {
	b := make([]byte, 0, 32)
	for i := range len(s) {
		if s[i] != '-' {
			b = append(b, s[i])
		}
	}
	if len(b) != 32 {
		return u, fmt.Errorf("database answered %q, must be a uuid", s)
	}
	if _, err := hex.Decode(u[:], b); err != nil {
		return u, fmt.Errorf("database answered %q, must be a uuid: %w", s, err)
	}
	return u, nil
}
