package devstack

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// install.sh must be silent where there is nothing to do. (What it does else changes the
// machine, so it is not for a test.)
func TestInstall_NothingToDo(t *testing.T) {
	script, err := os.ReadFile("install.sh")
	if err != nil {
		t.Fatal(err)
	}
	dir := tempHome(t)
	called := filepath.Join(dir, "called")
	if err := os.WriteFile(filepath.Join(dir, "apt-get"), []byte("#!/bin/sh\ntouch "+called+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		attr *syscall.SysProcAttr
		env  string
	}{
		{"all in the environment", nil, "REDIS_URL=x DATABASE_URL=x"},
		{"not root", asUser(65534, 65534), "PATH=" + dir + ":/bin:/usr/bin"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if os.Geteuid() != 0 {
				tt.attr = nil // never root
			}
			cmd := exec.Command("sh")
			cmd.Dir = "/"
			cmd.Stdin = strings.NewReader(string(script))
			cmd.Env = append([]string{"PATH=" + dir + ":" + os.Getenv("PATH")}, strings.Fields(tt.env)...)
			cmd.SysProcAttr = tt.attr
			if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
				t.Errorf("install.sh = %v, want silence\n%s", err, out)
			}
			if _, err := os.Stat(called); err == nil {
				t.Error("apt-get was called")
			}
		})
	}
}
