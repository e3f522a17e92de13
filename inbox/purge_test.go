package inbox

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
)

const day = 24 * time.Hour

// fill adds n rows to the inbox of a scope, of that age.
func fill(t *testing.T, db *sqlx.DB, scope int64, n int, age time.Duration) {
	t.Helper()
	_, err := db.Exec(`INSERT INTO inbox (key, scope, id, created_at)
		SELECT gen_random_uuid(), $1, 'm' || n, now() - $2::bigint * interval '1 millisecond' FROM generate_series(1, $3::int) AS n`,
		scope, age.Milliseconds(), n)
	must(t, err)
}

func rowsLeft(t *testing.T, db *sqlx.DB, scope int64) int {
	t.Helper()
	var n int
	must(t, db.Get(&n, "SELECT count(*) FROM inbox WHERE scope = $1", scope))
	return n
}

// newRowWalk returns a walk through the rows of a new inbox that may begin anew each time, and
// whose rounds are as small as can be.
func newRowWalk(t *testing.T, db *sqlx.DB, cfg PurgeConfig) (*walk, int64) {
	t.Helper()
	b := newBox(t, db, Config{})
	scope, err := b.scopeID(t.Context())
	must(t, err)
	cfg.Every = time.Nanosecond
	cfg = cfg.withDefaults()
	must(t, cfg.validate())
	w := b.rowWalk(cfg)
	w.pages, w.roundTime = leastPages, 0
	return w, scope
}

var keepADay = PurgeConfig{Retention: day, TopicRetention: day}

func TestPurge_RemovesWhatIsOldOfItsScope(t *testing.T) {
	drivers(t, func(t *testing.T, db *sqlx.DB) {
		w, scope := newRowWalk(t, db, keepADay)
		fill(t, db, scope, 5000, 2*day)
		fill(t, db, scope, 7, day-time.Hour)
		fill(t, db, scope+1, 9, 30*day)
		fill(t, db, scope, 5000, 2*day)
		must(t, w.walk(t.Context()))
		if left, others := rowsLeft(t, db, scope), rowsLeft(t, db, scope+1); left != 7 || others != 9 {
			t.Errorf("left %d of the scope and %d of another, want 7 and 9", left, others)
		}
	})
}

// Each round goes on where the one before ended, in whichever process, and at the end the
// walk is over until the next is due.
func TestPurge_WalksOn(t *testing.T) {
	db := newDB(t)
	w, scope := newRowWalk(t, db, keepADay)
	must(t, w.walk(t.Context()))
	fill(t, db, scope, 5000, 2*day)
	before, rounds, began := 5000, 0, ""
	for more := true; more; rounds++ {
		other, _ := newRowWalk(t, db, keepADay)
		if rounds > 0 {
			other.every = day // for a walk that has begun it does not matter
		}
		var err error
		more, err = other.round(t.Context(), scope)
		must(t, err)
		left := rowsLeft(t, db, scope)
		if rounds > 0 && more && (left == 0 || left >= before) || rounds == 0 && left != before {
			t.Errorf("round %d left %d of %d rows", rounds, left, before)
		}
		before = left
		var now string
		must(t, db.Get(&now, "SELECT began FROM inbox_purge"))
		if rounds > 0 && now != began {
			t.Errorf("round %d began a walk", rounds)
		}
		began = now
	}
	if before != 0 || rounds < 4 {
		t.Errorf("%d rows left after %d rounds, want none after several", before, rounds)
	}
	fill(t, db, scope, 5, 2*day)
	w.every = day
	if more, err := w.round(t.Context(), scope); more || err != nil || rowsLeft(t, db, scope) != 5 {
		t.Errorf("a walk that is not due: more %v, error %v, %d rows left of 5", more, err, rowsLeft(t, db, scope))
	}
}

// While another is at it nothing is removed, and what somebody has locked is removed later.
func TestPurge_WaitsForNobody(t *testing.T) {
	db := newDB(t)
	w, scope := newRowWalk(t, db, keepADay)
	must(t, w.walk(t.Context()))
	fill(t, db, scope, 5, 2*day)

	leader := db.MustBegin()
	defer leader.Rollback()
	leader.MustExec("SELECT FROM inbox_purge FOR UPDATE")
	more, err := w.round(t.Context(), scope)
	must(t, err)
	if left := rowsLeft(t, db, scope); more || left != 5 {
		t.Errorf("not the leader: more %v, %d left, want false and 5", more, left)
	}
	must(t, leader.Rollback())

	holder := db.MustBegin()
	defer holder.Rollback()
	holder.MustExec("SELECT key FROM inbox LIMIT 1 FOR UPDATE")
	must(t, w.walk(t.Context()))
	if left := rowsLeft(t, db, scope); left != 1 {
		t.Errorf("%d left while one was locked, want 1", left)
	}
	must(t, holder.Rollback())
	must(t, w.walk(t.Context()))
	if left := rowsLeft(t, db, scope); left != 0 {
		t.Errorf("%d left in the end, want none", left)
	}
}

// A process that is frozen in the middle of a round is not in the way for ever.
func TestPurge_FrozenInARound(t *testing.T) {
	db := newDB(t)
	frozen := newBox(t, db, Config{MaxHold: time.Second}).rowWalk(keepADay.withDefaults())
	frozen.first = func(ctx context.Context, tx *txn, _ int64) error {
		var pid int
		if err := tx.tx.GetContext(ctx, &pid, "SELECT pg_backend_pid()"); err != nil {
			return err
		}
		w, scope := newRowWalk(t, db, keepADay)
		if more, err := w.round(ctx, scope); more || err != nil {
			t.Errorf("meanwhile another takes a round: more %v, error %v", more, err)
		}
		deadline := time.Now().Add(20 * time.Second)
		for there := true; there; time.Sleep(5 * time.Millisecond) {
			if err := db.GetContext(ctx, &there, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)", pid); err != nil {
				return err
			}
			if time.Now().After(deadline) {
				t.Error("its connection is still there")
				return nil
			}
		}
		return nil
	}
	if err := frozen.walk(t.Context()); err == nil {
		t.Error("the frozen one goes on")
	}
	w, scope := newRowWalk(t, db, keepADay)
	fill(t, db, scope, 5, 2*day)
	must(t, w.walk(t.Context()))
	if left := rowsLeft(t, db, scope); left != 0 {
		t.Errorf("%d left, want none", left)
	}
}

func TestPurge_RunsUntilItsContextEnds(t *testing.T) {
	db := newDB(t)
	w, scope := newRowWalk(t, db, keepADay)
	fill(t, db, scope, 3000, 2*day)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- w.b.Purge(ctx, PurgeConfig{Retention: day, TopicRetention: day, Every: time.Millisecond})
	}()
	for rowsLeft(t, db, scope) > 0 {
		select {
		case err := <-ended:
			t.Fatalf("ended with %v while rows are left", err)
		case <-time.After(time.Millisecond):
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Purge = %v, want nil once its context ends", err)
	}
}

// A database that fails is asked again, and nothing of the failed round counts.
func TestPurge_GoesOnAfterAnError(t *testing.T) {
	db := newDB(t)
	w, scope := newRowWalk(t, db, keepADay)
	fill(t, db, scope, 3, 2*day)
	db.MustExec("ALTER TABLE inbox RENAME TO away")
	if err := w.walk(t.Context()); state(err) != "42P01" {
		t.Errorf("without its table: error %v, want 42P01", err)
	}
	db.MustExec("ALTER TABLE away RENAME TO inbox")
	must(t, w.walk(t.Context()))
	if left := rowsLeft(t, db, scope); left != 0 {
		t.Errorf("%d left, want none", left)
	}
}

// A round reads the pages of its range and no others, also where an index by age would find
// the few rows that are old.
func TestPurge_ReadsItsPagesAlone(t *testing.T) {
	db := newDB(t)
	w, scope := newRowWalk(t, db, withMarks)
	fences := w.b.fenceWalk(keepADay.withDefaults())
	fill(t, db, scope, 20_000, time.Minute)
	fill(t, db, scope, 5, 30*day)
	db.MustExec("INSERT INTO inbox_fence (resource, token) SELECT gen_random_uuid(), $1::bigint + n FROM generate_series(1, 20000) AS n", firstTime)
	db.MustExec("CREATE INDEX ON inbox (created_at); CREATE INDEX ON inbox (scope); CREATE INDEX ON inbox_fence (token); ANALYZE inbox, inbox_fence")
	for _, w := range []*walk{w, fences} {
		for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
			tx := db.MustBegin()
			defer tx.Rollback()
			tx.MustExec("SET LOCAL plan_cache_mode = " + mode)
			var lines []string
			must(t, tx.Select(&lines, "EXPLAIN (ANALYZE, TIMING OFF) "+w.remove, append([]any{page(16), page(24)}, w.args(scope)...)...))
			plan := strings.Join(lines, "\n")
			if !strings.Contains(plan, "Tid Range Scan") || strings.Contains(plan, "Index") && strings.Contains(plan, "_idx") || strings.Contains(plan, "Seq Scan") {
				t.Errorf("plan of a round, %s:\n%s", mode, plan)
			}
			must(t, tx.Rollback())
		}
	}
}

func TestNextPages(t *testing.T) {
	for _, tt := range []struct {
		pages int64
		took  time.Duration
		want  int64
	}{
		{1000, 10 * time.Millisecond, 2000},
		{1000, 70 * time.Millisecond, 1000},
		{1000, 200 * time.Millisecond, 500},
		{leastPages, time.Second, leastPages},
		{mostPages, time.Millisecond, mostPages},
	} {
		if got := nextPages(tt.pages, tt.took, 100*time.Millisecond); got != tt.want {
			t.Errorf("nextPages(%d, %v) = %d, want %d", tt.pages, tt.took, got, tt.want)
		}
	}
}

func TestPurge_RefusesEachMistake(t *testing.T) {
	b := newBox(t, open(t), Config{LockTimeout: 20 * time.Second})
	for want, change := range map[string]func(*PurgeConfig){
		"Retention is 1s, must be at least 1m":                                                             func(c *PurgeConfig) { c.Retention = time.Second },
		"TopicRetention is 0s, must say":                                                                   func(c *PurgeConfig) { c.TopicRetention = 0 },
		"Retention is 24h0m0s, must be at least TopicRetention (25h0m":                                     func(c *PurgeConfig) { c.TopicRetention = 25 * time.Hour },
		"Every is -1s, must be above 0":                                                                    func(c *PurgeConfig) { c.Every = -time.Second },
		"RoundTime is -1s, must be above 0":                                                                func(c *PurgeConfig) { c.RoundTime = -time.Second },
		"Retention is 1h0m0s, must be at least " + (4 * MaxSet * 20 * time.Second).String() + " for marks": func(c *PurgeConfig) { c.Marks, c.Retention = true, time.Hour },
	} {
		cfg := keepADay
		change(&cfg)
		if err := b.Purge(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Purge = %v, want %q", err, want)
		}
	}
	cfg := PurgeConfig{Retention: 2 * time.Hour, TopicRetention: day, Marks: true}
	if err := cfg.Validate(); err != nil {
		t.Errorf("with marks: %v", err)
	}
	for retention, every := range map[time.Duration]time.Duration{time.Minute: time.Minute, 8 * time.Hour: 30 * time.Minute, 8 * day: time.Hour} {
		if got := (PurgeConfig{Retention: retention}).withDefaults().Every; got != every {
			t.Errorf("Every for %v = %v, want %v", retention, got, every)
		}
	}
}

func TestForget(t *testing.T) {
	db := newDB(t)
	b := newBox(t, db, Config{})
	m := Message{ID: "jane@example.org"}
	if known, err := b.Forget(t.Context(), m.ID); err != nil || known {
		t.Errorf("Forget of nothing = %v, %v, want false", known, err)
	}
	if r := b.Apply(t.Context(), m, effect("m")); r.Outcome != Applied {
		t.Fatal(r)
	}
	if known, err := b.Forget(t.Context(), m.ID); err != nil || !known {
		t.Errorf("Forget = %v, %v, want true", known, err)
	}
	var ids []string
	must(t, db.Select(&ids, "SELECT id FROM inbox"))
	if len(ids) != 1 || ids[0] != "" {
		t.Errorf("readable IDs = %q, want one that is empty", ids)
	}
	if r := b.Apply(t.Context(), m, effect("m")); r.Outcome != Duplicate {
		t.Errorf("afterwards: %+v, want duplicate", r)
	}
}

func TestStats(t *testing.T) {
	db := newDB(t)
	w, scope := newRowWalk(t, db, keepADay)
	before, err := w.b.Stats(t.Context())
	must(t, err)
	if before.Oldest != 0 || before.Marks != 0 || before.Dead != 0 || before.Tasks != 0 {
		t.Errorf("of nothing: %+v", before)
	}
	fill(t, db, scope, 1000, time.Hour)
	db.MustExec("ANALYZE inbox")
	const dead = 7
	db.MustExec("UPDATE inbox SET dead = true WHERE id IN ('m1', 'm2', 'm3', 'm4', 'm5', 'm6', 'm7')")
	must(t, w.b.Mark(t.Context(), []Run{{[16]byte{1}, 0, 0, 5}, {[16]byte{1}, 0, 7, 9}}))
	db.MustExec("INSERT INTO inbox_mark SELECT topic, first, next, seen, ripe, at, scope + 1, part FROM inbox_mark")
	s, err := w.b.Stats(t.Context())
	must(t, err)
	if s.Rows != 1000 || s.Bytes <= before.Bytes || s.Oldest < time.Hour || s.Oldest > time.Hour+time.Minute || s.Marks != 2 || s.Dead != dead {
		t.Errorf("Stats = %+v, want 1000 rows, %d of them dead, more than %d bytes, oldest an hour, 2 marks", s, dead, before.Bytes)
	}
}
