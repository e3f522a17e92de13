package devstack

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// binaries are the folder with initdb and postgres.
type binaries struct {
	dir  string // empty if none were found
	kind string // for people
}

// binaryFolders are where installers put the binaries without a link on PATH. The star
// is, or ends in, a version.
var binaryFolders = []string{
	"/usr/lib/postgresql/*/bin",          // Debian
	"/usr/pgsql-*/bin",                   // Red Hat, from postgresql.org
	"/opt/homebrew/opt/postgresql@*/bin", // Homebrew on ARM
	"/usr/local/opt/postgresql@*/bin",    // Homebrew on Intel
	"/Applications/Postgres.app/Contents/Versions/*/bin",
}

// localBinaries looks for server binaries on this machine. They must be open to all if
// the server runs as another user. It returns no folder if there are none, and an error
// only if PG_BIN is set and does not have them.
func localBinaries(ctx context.Context, toAll bool) (binaries, error) {
	if dir := os.Getenv("PG_BIN"); dir != "" {
		dir, err := usable(dir, toAll)
		if err != nil {
			return binaries{}, fmt.Errorf("PG_BIN is set, but: %w", err)
		}
		return binaries{dir, "binaries of PG_BIN"}, nil
	}
	var dirs []string
	if out, err := exec.CommandContext(ctx, "pg_config", "--bindir").Output(); err == nil {
		dirs = append(dirs, strings.TrimSpace(string(out)))
	}
	dirs = append(dirs, filepath.SplitList(os.Getenv("PATH"))...)
	for _, pattern := range binaryFolders {
		found, _ := filepath.Glob(pattern) // the patterns are good
		slices.SortFunc(found, func(a, b string) int { return version(b) - version(a) })
		dirs = append(dirs, found...)
	}
	for _, dir := range dirs {
		if dir, err := usable(dir, toAll); err == nil {
			return binaries{dir, "local binaries"}, nil
		}
	}
	return binaries{}, nil
}

// usable returns the folder that initdb and postgres in dir really are in. A server finds
// its libraries and files from there, and links may lead to it.
func usable(dir string, toAll bool) (string, error) {
	var real string
	for _, name := range []string{"initdb", "postgres"} {
		path, err := exec.LookPath(filepath.Join(dir, name)) // a file that may be run
		if err != nil {
			return "", err
		}
		if path, err = filepath.EvalSymlinks(path); err != nil {
			return "", err
		}
		if path, err = filepath.Abs(path); err != nil {
			return "", err
		}
		if real != "" && real != filepath.Dir(path) {
			return "", fmt.Errorf("initdb and postgres in %s lead to %s and %s", dir, real, filepath.Dir(path))
		}
		real = filepath.Dir(path)
		if toAll && !openToAll(path) {
			return "", fmt.Errorf("%s cannot be run by other users, and Postgres does not run as root", path)
		}
	}
	return real, nil
}

var firstNumber = regexp.MustCompile(`\d+`)

// version returns the first number in the name of the folder above bin, 0 without one.
func version(bin string) int {
	n, _ := strconv.Atoi(firstNumber.FindString(filepath.Base(filepath.Dir(bin))))
	return n
}
