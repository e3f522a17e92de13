package inbox

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jmoiron/sqlx"
)

// oldVersion are the statements of code that was made for an older version of the schema.
const oldVersion = 2

func oldStatements(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("testdata/version" + strconv.Itoa(oldVersion) + ".sql")
	must(t, err)
	statements := map[string]string{}
	for _, part := range strings.Split(string(text), "-- name: ")[1:] {
		name, statement, _ := strings.Cut(part, "\n")
		statements[name] = names{table: DefaultTable}.in(strings.TrimSpace(statement))
	}
	return statements
}

// An oldInbox is code of the older version.
type oldInbox struct {
	t     *testing.T
	db    *sqlx.DB
	sql   map[string]string
	scope int64
}

func newOldInbox(t *testing.T, db *sqlx.DB) *oldInbox {
	t.Helper()
	o := &oldInbox{t: t, db: db, sql: oldStatements(t)}
	db.MustExec(o.sql["newScope"], "", "test")
	must(t, db.Get(&o.scope, o.sql["scope"], "", "test"))
	return o
}

// claim claims a message with one fence, and reports whether it is fresh and what look
// says if it is not: the fingerprint, and the token.
func (o *oldInbox) claim(tx *sqlx.Tx, e *entry) (fresh bool, seen []string) {
	o.t.Helper()
	key, resource := "{"+e.key.text()+"}", "{"+e.fences[0].resource.text()+"}"
	var ords []int
	must(o.t, tx.Select(&ords, o.sql["claim"], "2000", "60000", "true", strconv.FormatInt(o.scope, 10), key, "{"+e.id+"}",
		"{"+e.fingerprint.text()+"}", resource, "{NULL}", "{NULL}", "{NULL}", resource, "{"+strconv.FormatInt(e.fences[0].token, 10)+"}", "0"))
	if len(ords) == 0 {
		return true, nil
	}
	rows, err := tx.Query(o.sql["look"], key, resource)
	must(o.t, err)
	defer rows.Close()
	for rows.Next() {
		var name string
		var fingerprint, token *string
		must(o.t, rows.Scan(&name, &fingerprint, &token))
		for _, s := range []*string{fingerprint, token} {
			if s != nil {
				seen = append(seen, strings.ReplaceAll(*s, "-", ""))
			}
		}
	}
	must(o.t, rows.Err())
	slices.Sort(seen)
	return false, seen
}

// During a rolling upgrade code of the older version works on the newest schema, beside
// code of this one: what one has decided is known to the other.
func TestUpgrade_OldCodeOnTheNewSchema(t *testing.T) {
	db := newDB(t)
	b, old := newBox(t, db, Config{}), newOldInbox(t, db)
	m := func(id string, token int64) Message {
		return Message{ID: id, Digest: []byte("1"), Fences: []Fence{{"x", token}}}
	}
	entryOf := func(m Message) *entry {
		e, err := b.newEntry(0, &m)
		must(t, err)
		return e
	}

	tx := db.MustBegin()
	if fresh, seen := old.claim(tx, entryOf(m("a", 5))); !fresh {
		t.Fatalf("the old code cannot claim: %v", seen)
	}
	must(t, tx.Commit())
	wantOutcome(t, b.Apply(t.Context(), m("a", 5), effect("a")), Duplicate)
	wantOutcome(t, b.Apply(t.Context(), m("b", 4), effect("b")), Stale)
	wantOutcome(t, b.Apply(t.Context(), m("b", 6), effect("b")), Applied)

	tx = db.MustBegin()
	if fresh, seen := old.claim(tx, entryOf(m("b", 6))); fresh || !slices.Contains(seen, entryOf(m("b", 6)).fingerprint.text()) {
		t.Errorf("the old code does not know what is decided: fresh %v, %q", fresh, seen)
	}
	if fresh, seen := old.claim(tx, entryOf(m("c", 5))); fresh || !slices.Equal(seen, []string{"6"}) {
		t.Errorf("the old code does not know the fence: fresh %v, %q, want token 6", fresh, seen)
	}
	if fresh, _ := old.claim(tx, entryOf(m("d", 7))); !fresh {
		t.Error("the old code cannot claim with a newer token")
	}
	if _, err := tx.Exec(old.sql["unclaim"], "{"+entryOf(m("d", 7)).key.text()+"}"); err != nil {
		t.Errorf("the old code cannot give a claim back: %v", err)
	}
	must(t, tx.Commit())
	wantOutcome(t, b.Apply(t.Context(), m("d", 7), effect("d")), Applied)
	wantEffects(t, db, "b", "d")

	// The server takes the others, too.
	for name, statement := range old.sql {
		if _, err := db.Exec("PREPARE old AS " + statement + "; DEALLOCATE old"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// This code is refused by each older schema, and what Check prints is enough.
func TestUpgrade_NewCodeOnAnOldSchema(t *testing.T) {
	ms, err := migrations()
	must(t, err)
	for v := range ms {
		db := open(t)
		must(t, Migrate(t.Context(), db, To(v)))
		e := as[*SchemaError](t, Check(t.Context(), db))
		if len(e.Missing) == 0 || !strings.Contains(e.DDL, ms[v].up) {
			t.Errorf("version %d: missing %q, DDL:\n%s", v, e.Missing, e.DDL)
		}
		db.MustExec(e.DDL)
		must(t, Check(t.Context(), db))
	}
}
