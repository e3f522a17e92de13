package inbox

import (
	"io/fs"
	"slices"
	"strings"
	"testing"
)

// What other tools run is the same: their own files are tried with them in
// internal/migratetools.
func TestExport_ByHand(t *testing.T) {
	db := open(t)
	dir, err := Export(GolangMigrate, "box")
	must(t, err)
	run := func(pattern string, reverse bool) {
		files, err := fs.Glob(dir, pattern)
		must(t, err)
		if len(files) == 0 {
			t.Fatal("there are none")
		}
		if reverse {
			slices.Reverse(files)
		}
		for _, name := range files {
			b, err := fs.ReadFile(dir, name)
			must(t, err)
			db.MustExec(string(b))
		}
	}
	run("*.up.sql", false)
	must(t, Check(t.Context(), db, WithTable("box")))
	run("*.down.sql", true)
	if left := relations(t, db); len(left) > 0 {
		t.Errorf("relations %q are left", left)
	}
}

func TestExport_Refuses(t *testing.T) {
	for want, f := range map[string]func() (fs.FS, error){
		"tool is 0, must be GolangMigrate, Goose or Atlas": func() (fs.FS, error) { return Export(0, "") },
		`Table is "Box", must be`:                          func() (fs.FS, error) { return Export(Goose, "Box") },
	} {
		if _, err := f(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error = %v, want %q", err, want)
		}
	}
}
