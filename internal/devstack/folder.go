package devstack

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// A folder holds everything that a stack's servers write. While its supervisor lives, it
// has a lock on it (flock), so a folder without one is left over from a supervisor that
// was killed.
type folder struct {
	path string
	lock *os.File // the folder itself
}

// Folders are made under the first prefix and renamed to the second once they are
// locked, so that nobody takes a new one for a left-over.
const (
	rawPrefix    = "onceward-new-"
	folderPrefix = "onceward-stack-"
)

// newFolder makes a folder and removes those left over by this user.
func newFolder() (*folder, error) {
	base := tempDir()
	removeStale(base)
	raw, err := os.MkdirTemp(base, rawPrefix)
	if err != nil {
		return nil, err
	}
	// Postgres runs as another user if we are root, and must get to its folder inside.
	if err := os.Chmod(raw, 0o711); err != nil {
		return nil, err
	}
	lock, err := os.Open(raw)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, fmt.Errorf("lock %s: %w", raw, err)
	}
	path := filepath.Join(base, folderPrefix+strings.TrimPrefix(filepath.Base(raw), rawPrefix))
	if err := os.Rename(raw, path); err != nil {
		return nil, err
	}
	return &folder{path: path, lock: lock}, nil
}

// remove removes the folder. The last processes of a killed server may still write for a
// moment, so it tries again for two seconds.
func (f *folder) remove() {
	if f.path == "" {
		return
	}
	for deadline := time.Now().Add(2 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if err := os.RemoveAll(f.path); err == nil || time.Now().After(deadline) {
			break // what is left, the next start removes
		}
	}
	f.lock.Close()
}

// removeStale removes the folders under base whose supervisor is gone, with the servers
// that still run in them. Only our own: another user's may say anything.
func removeStale(base string) {
	stale, _ := filepath.Glob(filepath.Join(base, folderPrefix+"*")) // the pattern is good
	for _, path := range stale {
		lock, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_DIRECTORY, 0)
		if err != nil {
			continue
		}
		var st syscall.Stat_t
		err = syscall.Fstat(int(lock.Fd()), &st)
		if err == nil && int(st.Uid) == os.Geteuid() && syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			killOrphans(path)
			(&folder{path: path, lock: lock}).remove()
			continue
		}
		lock.Close()
	}
}

// tempDir returns os.TempDir, or /tmp if we are root and others cannot get there.
func tempDir() string {
	dir := os.TempDir()
	if os.Geteuid() == 0 && !openToAll(dir) {
		return "/tmp"
	}
	return dir
}

// openToAll reports whether every user may pass through path and its parents.
func openToAll(path string) bool {
	path, err := filepath.Abs(path)
	for err == nil {
		var fi os.FileInfo
		if fi, err = os.Stat(path); err != nil || fi.Mode().Perm()&0o001 == 0 {
			return false
		}
		if path == filepath.Dir(path) {
			return true
		}
		path = filepath.Dir(path)
	}
	return false
}
