package devstack

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// A server's process id is written down with the time it started, in the words of ps.
// Both together name a process, even if the number is used again.

func pidFile(dir string, pid int) string {
	return filepath.Join(dir, fmt.Sprintf("pid-%d", pid))
}

// notePID writes down that process pid serves the stack in dir, and the signal that ends
// it in a hurry. Without ps nothing is written, and a server may then outlive a killed
// supervisor where the kernel does not see to that.
func notePID(dir string, pid int, sig syscall.Signal) {
	if since := startTime(pid); since != "" {
		os.WriteFile(pidFile(dir, pid), fmt.Appendf(nil, "%d %s", sig, since), 0o600)
	}
}

// killOrphans ends the processes written down in dir.
func killOrphans(dir string) {
	files, _ := filepath.Glob(filepath.Join(dir, "pid-*")) // the pattern is good
	for _, f := range files {
		text, _ := os.ReadFile(f)
		number, since, ok := strings.Cut(string(text), " ")
		sig, serr := strconv.Atoi(number)
		pid, perr := strconv.Atoi(strings.TrimPrefix(filepath.Base(f), "pid-"))
		if ok && serr == nil && perr == nil && since != "" && startTime(pid) == since {
			syscall.Kill(-pid, syscall.Signal(sig)) // each leads its own group
		}
	}
}

// startTime returns when process pid started, or "".
func startTime(pid int) string {
	cmd := exec.Command("ps", "-o", "lstart=", "-p", strconv.Itoa(pid))
	cmd.Env = append(os.Environ(), "LC_ALL=C", "TZ=UTC")
	out, err := cmd.Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}
