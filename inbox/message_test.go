package inbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
)

// These are in databases. If this test fails, all messages would be new.
func TestHash_IsStored(t *testing.T) {
	b := newBox(t, openURL(t, "postgres://x@127.0.0.1:1/x"), Config{Tenant: "acme", Consumer: "billing"})
	e, err := b.newEntry(0, &Message{ID: "order-1", Digest: []byte("v1"), Fences: []Fence{{"order:1", 1}}})
	must(t, err)
	got := fmt.Sprintf("%x %x %x", e.key, e.fingerprint, e.fences[0].resource)
	if want := "06417544d25afa4fb6ebb772d2edb4f5 51010d4f24c3bbbd95f7d7845c26a095 263d70dfbc2263870b8d1eae72d815b5"; got != want {
		t.Errorf("hashes = %s, want %s", got, want)
	}
}

func TestHash_PartsAreApart(t *testing.T) {
	seen := map[uuid]string{}
	for _, parts := range [][]string{{"a", "", "b", "c"}, {"a", "b", "", "c"}, {"a", "bc"}, {"a", "b", "c"}, {"ab", "c"}, {"abc"}, {"a", "b", "c", ""}} {
		h := hash(parts[0], parts[1:]...)
		if other, ok := seen[h]; ok {
			t.Errorf("%q and %s have one hash", parts, other)
		}
		seen[h] = fmt.Sprintf("%q", parts)
	}
}

func TestReadable(t *testing.T) {
	long := strings.Repeat("x", maxReadable)
	for in, want := range map[string]string{
		"order-1":                 "order-1",
		`a "b" \`:                 `a "b" \`,
		"\u0437\U0001F600":        `\u0437\U0001f600`,
		"a\tb\x7f\n":              `a\tb\x7f\n`,
		"\xff\xc3(":               `\xff\xc3(`,
		"\uFFFD":                  `\ufffd`,
		long:                      long,
		long + "y":                long[:maxReadable-3] + "...",
		long[:115] + "\u0437tail": long[:115] + "...",
	} {
		if got := readable(in); got != want {
			t.Errorf("readable(%q) = %q, want %q", in, got, want)
		}
	}
}

// What PostgreSQL reads from an array is what was put into it.
func FuzzArray(f *testing.F) {
	for _, s := range []string{"", "NULL", `"`, `\`, `{},"`, "a b", "\u0437", "\x00\xff", strings.Repeat("é", 100)} {
		f.Add(s, int64(len(s)))
	}
	f.Fuzz(func(t *testing.T, s string, n int64) {
		var texts, ints, uuids array
		id := hash(s)
		texts.text(readable(s))
		texts.null()
		ints.int(n)
		ints.null()
		uuids.uuid(id)
		uuids.uuidOrNull(id, false)
		if len(readable(s)) > maxReadable {
			t.Errorf("readable(%q) has %d bytes", s, len(readable(s)))
		}
		// A reader of the text form, as the manual describes it.
		got, err := parseArray(texts.String())
		if err != nil || len(got) != 2 || got[0] == nil || *got[0] != readable(s) || got[1] != nil {
			t.Errorf("text array %s reads as %v, %v", texts.String(), got, err)
		}
		if want := fmt.Sprintf("{%d,NULL}", n); ints.String() != want {
			t.Errorf("int array = %s, want %s", ints.String(), want)
		}
		if want := fmt.Sprintf("{%x,NULL}", id); uuids.String() != want {
			t.Errorf("uuid array = %s, want %s", uuids.String(), want)
		}
		if back, err := parseUUID(fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])); err != nil || back != id {
			t.Errorf("uuid %x comes back as %x, %v", id, back, err)
		}
	})
}

func parseArray(s string) (out []*string, _ error) {
	if len(s) < 2 || s[0] != '{' || s[len(s)-1] != '}' {
		return nil, errors.New("no braces")
	}
	for s = s[1 : len(s)-1]; s != ""; {
		if rest, ok := strings.CutPrefix(s, "NULL"); ok {
			out, s = append(out, nil), rest
		} else {
			if s[0] != '"' {
				return nil, errors.New("no quote")
			}
			var b []byte
			i := 1
			for ; i < len(s) && s[i] != '"'; i++ {
				if s[i] == '\\' {
					i++
				}
				b = append(b, s[i])
			}
			if i >= len(s) {
				return nil, errors.New("no end")
			}
			e := string(b)
			out, s = append(out, &e), s[i+1:]
		}
		s = strings.TrimPrefix(s, ",")
	}
	return out, nil
}

// The server agrees, and any ID is good.
func TestApplyBatch_AnyID(t *testing.T) {
	drivers(t, func(t *testing.T, db *sqlx.DB) {
		var ms []Message
		for _, id := range []string{"NULL", `"`, `\`, `{},"`, "a b ", "\u0437", "\xff", "\n", "'; DROP TABLE inbox; --", strings.Repeat("é", 511)} {
			ms = append(ms, Message{ID: "x" + id})
		}
		for i, r := range newBox(t, db, Config{}).ApplyBatch(t.Context(), ms, func(context.Context, *sqlx.Tx, int) error { return nil }) {
			if r.Outcome != Applied {
				t.Errorf("ID %q: %v (%v), want applied", ms[i].ID, r.Outcome, r.Err)
			}
			var n int
			must(t, db.Get(&n, "SELECT count(*) FROM inbox WHERE id = $1", readable(ms[i].ID)))
			if n != 1 {
				t.Errorf("%d rows read %q, want 1", n, readable(ms[i].ID))
			}
		}
	})
}

func TestParseUUID_Refuses(t *testing.T) {
	for _, s := range []string{"", "0123", strings.Repeat("0", 33), strings.Repeat("x", 32)} {
		if _, err := parseUUID(s); err == nil {
			t.Errorf("parseUUID(%q) has no error", s)
		}
	}
}

func TestMilliseconds_RoundsUp(t *testing.T) {
	for d, want := range map[time.Duration]string{time.Millisecond: "1", 1500 * time.Microsecond: "2", 24 * time.Hour: "86400000"} {
		if got := milliseconds(d); got != want {
			t.Errorf("milliseconds(%v) = %s, want %s", d, got, want)
		}
	}
}

func TestOutcome(t *testing.T) {
	for o, want := range map[Outcome]string{0: "none", Applied: "applied", Failed: "failed", 99: "Outcome(99)", -1: "Outcome(-1)"} {
		if got := o.String(); got != want {
			t.Errorf("Outcome %d = %s, want %s", int(o), got, want)
		}
	}
	for o := Outcome(0); o <= Failed; o++ {
		if want := o == Applied || o == Skipped || o == Duplicate; o.Decided() != want {
			t.Errorf("%v.Decided() = %v, want %v", o, !want, want)
		}
	}
}
