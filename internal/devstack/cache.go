package devstack

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// cacheDir returns the folder for what was fetched. Root's is one that every user may
// read: Postgres runs as another user, and /root is closed.
func cacheDir() string {
	if os.Geteuid() == 0 {
		return "/var/tmp/onceward-cache"
	}
	base, err := os.UserCacheDir()
	if err != nil || os.MkdirAll(base, 0o700) != nil { // no home, as user nobody has none
		base = os.TempDir()
	}
	return filepath.Join(base, fmt.Sprintf("onceward-cache-%d", os.Geteuid()))
}

// cached returns the folder name in the cache at base. If it is not there, fill makes it,
// given a temporary folder of its own. The folder appears whole or not at all; if two
// processes make it, the first wins and the other's is thrown away.
func cached(base, name string, fill func(dir string) error) (string, error) {
	if err := ownFolder(base); err != nil {
		return "", err
	}
	dir := filepath.Join(base, name)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	removeOldPartials(base)
	tmp, err := os.MkdirTemp(base, "partial-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp) // after the rename it is not there
	if err := os.Chmod(tmp, 0o755); err != nil {
		return "", err
	}
	if err := fill(tmp); err != nil {
		return "", err
	}
	if err := os.Rename(tmp, dir); err != nil {
		if _, serr := os.Stat(dir); serr != nil {
			return "", err
		}
	}
	return dir, nil
}

// partialFor is how long a fetch may take before its folder counts as left over from a
// process that was killed.
const partialFor = time.Hour

func removeOldPartials(base string) {
	partials, _ := filepath.Glob(filepath.Join(base, "partial-*")) // the pattern is good
	for _, dir := range partials {
		if fi, err := os.Stat(dir); err == nil && time.Since(fi.ModTime()) > partialFor {
			os.RemoveAll(dir)
		}
	}
}

// ownFolder makes dir unless it is there, and makes sure that nobody else can write to
// it: programs are run from it, and its parent may be open to all.
func ownFolder(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	fi, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if st, ok := fi.Sys().(*syscall.Stat_t); !ok || !fi.IsDir() || int(st.Uid) != os.Geteuid() || fi.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s must be a folder of user %d that nobody else can write to, remove it", dir, os.Geteuid())
	}
	return nil
}
