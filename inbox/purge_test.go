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

func newPurger(t *testing.T, db *sqlx.DB) (*purger, int64) {
	t.Helper()
	b := newBox(t, db, Config{})
	scope, err := b.scopeID(t.Context())
	must(t, err)
	cfg := PurgeConfig{Retention: day, TopicRetention: day}.withDefaults()
	must(t, cfg.validate())
	return &purger{b: b, cfg: cfg, statement: b.cfg.names().in(purgeSQL), size: firstRound, from: beginning}, scope
}

func TestPurge_RemovesWhatIsOldOfItsScope(t *testing.T) {
	drivers(t, func(t *testing.T, db *sqlx.DB) {
		p, scope := newPurger(t, db)
		fill(t, db, scope, 2*firstRound+5, 2*day)
		fill(t, db, scope, 7, day-time.Hour)
		fill(t, db, scope+1, 9, 30*day)
		rounds := 0
		for more := true; more; rounds++ {
			var err error
			more, err = p.round(t.Context())
			must(t, err)
		}
		if left, others := rowsLeft(t, db, scope), rowsLeft(t, db, scope+1); left != 7 || others != 9 {
			t.Errorf("left %d of the scope and %d of another, want 7 and 9", left, others)
		}
		if rounds < 2 {
			t.Errorf("%d rounds, the test wants several", rounds)
		}
	})
}

// Who is not the leader removes nothing, and what somebody has locked is removed later.
func TestPurge_WaitsForNobody(t *testing.T) {
	db := newDB(t)
	p, scope := newPurger(t, db)
	fill(t, db, scope, 5, 2*day)

	leader := db.MustBegin()
	defer leader.Rollback()
	if _, err := leader.Exec("SELECT pg_advisory_xact_lock($1::int, $2::int)", purgeLock, scope); err != nil {
		t.Fatal(err)
	}
	more, err := p.round(t.Context())
	must(t, err)
	if left := rowsLeft(t, db, scope); more || left != 5 {
		t.Errorf("not the leader: more %v, %d left, want false and 5", more, left)
	}
	must(t, leader.Rollback())

	holder := db.MustBegin()
	defer holder.Rollback()
	if _, err := holder.Exec("SELECT key FROM inbox LIMIT 1 FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	_, err = p.round(t.Context())
	must(t, err)
	if left := rowsLeft(t, db, scope); left != 1 {
		t.Errorf("%d left while one was locked, want 1", left)
	}
	must(t, holder.Rollback())
	_, err = p.round(t.Context())
	must(t, err)
	if left := rowsLeft(t, db, scope); left != 0 {
		t.Errorf("%d left in the end, want none", left)
	}
}

func TestPurge_RunsUntilItsContextEnds(t *testing.T) {
	db := newDB(t)
	p, scope := newPurger(t, db)
	fill(t, db, scope, 3*firstRound, 2*day)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- p.b.Purge(ctx, PurgeConfig{Retention: day, TopicRetention: day, Every: time.Millisecond})
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

// A database that fails is asked again.
func TestPurge_GoesOnAfterAnError(t *testing.T) {
	db := newDB(t)
	p, scope := newPurger(t, db)
	fill(t, db, scope, 3, 2*day)
	db.MustExec("ALTER TABLE inbox RENAME TO away")
	if more, err := p.round(t.Context()); more || state(err) != "42P01" {
		t.Errorf("without its table: more %v, error %v, want 42P01", more, err)
	}
	db.MustExec("ALTER TABLE away RENAME TO inbox")
	_, err := p.round(t.Context())
	must(t, err)
	if left := rowsLeft(t, db, scope); left != 0 {
		t.Errorf("%d left, want none", left)
	}
}

func TestNextRound(t *testing.T) {
	for _, tt := range []struct {
		size, removed int
		took          time.Duration
		want          int
	}{
		{1000, 1000, 10 * time.Millisecond, 2000},
		{1000, 1000, 70 * time.Millisecond, 1000},
		{1000, 10, 10 * time.Millisecond, 1000}, // nothing is learned from a short one
		{1000, 1000, 200 * time.Millisecond, 500},
		{leastRound, leastRound, time.Second, leastRound},
		{mostRound, mostRound, time.Millisecond, mostRound},
	} {
		if got := nextRound(tt.size, tt.removed, tt.took, 100*time.Millisecond); got != tt.want {
			t.Errorf("nextRound(%d, %d, %v) = %d, want %d", tt.size, tt.removed, tt.took, got, tt.want)
		}
	}
}

func TestPurge_RefusesEachMistake(t *testing.T) {
	b := newBox(t, open(t), Config{})
	good := PurgeConfig{Retention: day, TopicRetention: day}
	for want, change := range map[string]func(*PurgeConfig){
		"Retention is 1s, must be at least 1m":                         func(c *PurgeConfig) { c.Retention = time.Second },
		"TopicRetention is 0s, must say":                               func(c *PurgeConfig) { c.TopicRetention = 0 },
		"Retention is 24h0m0s, must be at least TopicRetention (25h0m": func(c *PurgeConfig) { c.TopicRetention = 25 * time.Hour },
		"Every is -1s, must be above 0":                                func(c *PurgeConfig) { c.Every = -time.Second },
		"RoundTime is -1s, must be above 0":                            func(c *PurgeConfig) { c.RoundTime = -time.Second },
	} {
		cfg := good
		change(&cfg)
		if err := b.Purge(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Purge = %v, want %q", err, want)
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
	p, scope := newPurger(t, db)
	before, err := p.b.Stats(t.Context())
	must(t, err)
	if before.Oldest != 0 || before.Tasks != 0 {
		t.Errorf("of nothing: %+v", before)
	}
	fill(t, db, scope, 1000, time.Hour)
	db.MustExec("ANALYZE inbox")
	s, err := p.b.Stats(t.Context())
	must(t, err)
	if s.Rows != 1000 || s.Bytes <= before.Bytes || s.Oldest < time.Hour || s.Oldest > time.Hour+time.Minute {
		t.Errorf("Stats = %+v, want 1000 rows, more than %d bytes, oldest an hour", s, before.Bytes)
	}
}
