package inbox

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
)

// A Run is offsets of a partition, From and up to but not including Upto, each of which
// is decided: see [Outcome.Decided].
type Run struct {
	Topic      [16]byte // the topic's ID
	Partition  int32
	From, Upto int64
}

// markSQL adds runs, at most one of each partition. A run that ends at or behind the
// beginning of a new one grows, else there is a new row: what lies between was decided
// by nobody, as far as is known. Which run grows is read before the rows are locked. If
// another call is faster, two runs overlap, which does no harm: only what they cover
// together counts, and that only grows. If the purge removes the run meanwhile, it is
// made anew, as true as before.
//
// Sorted, so that calls of two members for the same partitions do not deadlock.
const markSQL = `
INSERT INTO {inbox_mark} AS k (scope, topic, part, first, next, seen, ripe)
SELECT $1::int, x.topic, x.part, x.first, x.upto, x.first, x.first FROM (
  SELECT t.topic, t.part, t.upto, coalesce((SELECT max(r.first) FROM {inbox_mark} r WHERE r.scope = $1::int AND r.topic = t.topic
    AND r.part = t.part AND r.first <= t.start AND t.start <= r.next), t.start) AS first
  FROM unnest($2::uuid[], $3::int[], $4::bigint[], $5::bigint[]) AS t(topic, part, start, upto)) x
ORDER BY x.topic, x.part
ON CONFLICT (scope, topic, part, first) DO UPDATE SET next = EXCLUDED.next WHERE k.next < EXCLUDED.next`

// Mark writes down runs of offsets that are decided, for this inbox's scope. From then
// on a message with a [Position] inside of one is a [Duplicate] whatever its ID, so its
// row may go before the topic forgets the message: see [PurgeConfig.Marks]. (A row that is
// still there is compared first, and so may be a [Conflict].)
//
// It is for the loop that commits offsets to Kafka (that of package consumer has it, as
// Route.Marker): every ten seconds or so, and when a partition is taken away, name what was
// decided since the last call, or since the partition was assigned. Begin where this
// member's own knowledge begins, never earlier: what another has decided, or nobody,
// because a consumer started at the end or offsets were moved by hand, is a gap between two
// runs and stays undecided. If Mark fails, name the same offsets again next time: all that
// a run left out costs is that its rows are kept longer.
//
// Runs may overlap with what is marked, and come in any order. An empty run says
// nothing. Offsets once marked stay so until their topic has forgotten them, and a rewind does
// not take effect again: a deliberate one wants a new [Config.Consumer].
func (b *Inbox) Mark(ctx context.Context, runs []Run) error {
	for i, r := range runs {
		switch {
		case r.Topic == [16]byte{}:
			return fmt.Errorf("inbox: mark: runs[%d].Topic is zero, must be the ID of the topic", i)
		case r.Partition < 0:
			return fmt.Errorf("inbox: mark: runs[%d].Partition is %d, must not be negative", i, r.Partition)
		case r.From < 0 || r.Upto < r.From:
			return fmt.Errorf("inbox: mark: runs[%d] is from %d up to %d, must be from 0 or more up to no less", i, r.From, r.Upto)
		}
	}
	statements := apart(runs)
	if len(statements) == 0 {
		return nil
	}
	scope, err := b.scopeID(ctx)
	if err != nil {
		return fmt.Errorf("inbox: mark: %w", err)
	}
	for _, rs := range statements {
		var topics, parts, froms, uptos array
		for _, r := range rs {
			topics.uuid(r.Topic)
			parts.int(int64(r.Partition))
			froms.int(r.From)
			uptos.int(r.Upto)
		}
		// A statement on its own, so that no client can be frozen between its reading of
		// the runs and its COMMIT.
		if _, err := b.alone(ctx, b.sql.mark, scope, topics.String(), parts.String(), froms.String(), uptos.String()); err != nil {
			return fmt.Errorf("inbox: mark: %w", err)
		}
	}
	return nil
}

// apart returns runs joined where they touch, and such that no list has two of one
// partition: a statement can change a row only once.
func apart(runs []Run) (lists [][]Run) {
	runs = slices.DeleteFunc(slices.Clone(runs), func(r Run) bool { return r.From == r.Upto })
	partition := func(a, b Run) int {
		return cmp.Or(slices.Compare(a.Topic[:], b.Topic[:]), cmp.Compare(a.Partition, b.Partition))
	}
	slices.SortFunc(runs, func(a, b Run) int { return cmp.Or(partition(a, b), cmp.Compare(a.From, b.From)) })
	var last *Run // of all lists
	nth := 0      // of its partition
	for _, r := range runs {
		switch {
		case last == nil || partition(*last, r) != 0:
			nth = 0
		case r.From <= last.Upto:
			last.Upto = max(last.Upto, r.Upto)
			continue
		default:
			nth++
		}
		if nth == len(lists) {
			lists = append(lists, nil)
		}
		lists[nth] = append(lists[nth], r)
		last = &lists[nth][len(lists[nth])-1]
	}
	return lists
}

const (
	// ripenSQL moves on how far rows may be removed. ripe is what next was $2 ms ago or
	// before, so that whoever began to look at the run before it grew there is done by
	// the time that a row goes. A run that is changed meanwhile is left for the next time.
	ripenSQL = `
UPDATE {inbox_mark} SET ripe = seen, seen = next, at = clock_timestamp() WHERE ctid = ANY (ARRAY(
  SELECT k.ctid FROM {inbox_mark} k WHERE k.scope = $1::int AND k.ripe < k.next
    AND k.at < clock_timestamp() - $2::bigint * interval '1 millisecond'
  FOR UPDATE OF k SKIP LOCKED))`

	// unmarkSQL removes runs that have not grown for $2 ms, and those that another covers.
	unmarkSQL = `
DELETE FROM {inbox_mark} WHERE ctid = ANY (ARRAY(
  SELECT k.ctid FROM {inbox_mark} k WHERE k.scope = $1::int
    AND (k.ripe = k.next AND k.at < clock_timestamp() - $2::bigint * interval '1 millisecond'
      OR EXISTS (SELECT FROM {inbox_mark} r WHERE r.scope = k.scope AND r.topic = k.topic AND r.part = k.part
        AND r.first < k.first AND r.ripe >= k.next))
  FOR UPDATE OF k SKIP LOCKED))`
)

// ripen does what there is to do about marks before a walk through the rows.
func (b *Inbox) ripen(ctx context.Context, t *txn, scope int64, cfg PurgeConfig) error {
	id := strconv.FormatInt(scope, 10)
	if _, err := t.tx.ExecContext(ctx, b.in(ripenSQL), id, milliseconds(cfg.Retention/2)); err != nil {
		return fmt.Errorf("ripen marks: %w", err)
	}
	if _, err := t.tx.ExecContext(ctx, b.in(unmarkSQL), id, milliseconds(max(cfg.Retention, cfg.TopicRetention))); err != nil {
		return fmt.Errorf("remove marks: %w", err)
	}
	return nil
}
