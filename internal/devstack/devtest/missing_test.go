package devtest_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/onceward/onceward/internal/devstack/devtest"
)

// A missing service skips a test and says why, or fails it if the caller insists.
func TestMissing(t *testing.T) {
	if os.Getenv("DEVTEST_CHILD") == "1" {
		devtest.OwnRedis(t)
		return
	}
	tests := []struct{ name, require, want string }{
		{"bare", "", "--- SKIP"},
		{"required", "1", "--- FAIL"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run=^TestMissing$", "-test.v")
			cmd.Env = append(os.Environ(), "DEVTEST_CHILD=1", "PATH=/nonexistent", "ONCEWARD_REQUIRE="+tt.require)
			out, err := cmd.CombinedOutput()
			if failed := err != nil; failed != (tt.want == "--- FAIL") || !strings.Contains(string(out), tt.want) || !strings.Contains(string(out), "install redis-server") {
				t.Errorf("%v, want %s with what to install:\n%s", err, tt.want, out)
			}
		})
	}
}
