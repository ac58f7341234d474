package harness

import (
	"os"
	"os/exec"
	"testing"

	"github.com/csi-addons/node-healer/pkg/host"
)

// NeedsRoot skips on a laptop and fails where skipping is not allowed.
func NeedsRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("CI") != "" {
		t.Fatal("needs root, and in CI a test that would skip fails")
	}
	t.Skip("needs root, for mounts and loop devices")
}

// NeedsKernel skips where this kernel cannot show what the test is about, and
// fails where skipping is not allowed.
func NeedsKernel(t testing.TB, can bool, what string) {
	t.Helper()
	switch {
	case can:
	case os.Getenv("CI") != "":
		t.Fatalf("this kernel does not show %s, and in CI a test that would skip fails", what)
	default:
		t.Skipf("this kernel does not show %s", what)
	}
}

// NeedsPrograms skips where a program is not installed, and fails where skipping
// is not allowed.
func NeedsPrograms(t testing.TB, programs ...string) {
	t.Helper()
	for _, program := range programs {
		_, err := exec.LookPath(program)
		switch {
		case err == nil:
		case os.Getenv("CI") != "":
			t.Fatalf("%v (make deps installs it), and in CI a test that would skip fails", err)
		default:
			t.Skipf("%v (make deps installs it)", err)
		}
	}
}

// uniqueMountIDs is true where the mount table has ids that are never used
// again: without them a memory filesystem has no identity.
func uniqueMountIDs(t testing.TB) bool {
	t.Helper()
	ns, err := host.OpenNamespace("", nil)
	Must(t, err)
	defer ns.Close()
	table, err := ns.Mounts()
	Must(t, err)
	return len(table.Mounts()) > 0 && table.Mounts()[0].ID != 0
}
