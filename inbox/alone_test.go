package inbox

import "testing"

func TestInline(t *testing.T) {
	got, err := inline("SELECT $2::int, $1::uuid[], $11", "{0a,NULL}", int64(-5), 3, 4, 5, 6, 7, 8, 9, 10, uuid{}.text())
	if want := "SELECT '-5'::int, '{0a,NULL}'::uuid[], '00000000000000000000000000000000'"; got != want || err != nil {
		t.Errorf("%s (%v), want %s", got, err, want)
	}
	for _, bad := range []any{"'", `\`, "a b", "x", nil, "{\"a\"}"} {
		if got, err := inline("SELECT $1", bad); err == nil {
			t.Errorf("%q became %s, want it refused", bad, got)
		}
	}
}
