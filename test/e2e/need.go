package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/csi-addons/node-healer/test/harness"
)

// programs is where `make build` puts the programs of our image.
const programs = "../../bin"

// needs skips where the node cannot be made, and fails where skipping is not
// allowed. (What Kubernetes brings, the cluster asks for.)
func needs(t testing.TB) {
	t.Helper()
	harness.NeedsRoot(t)
	for _, name := range []string{"containerd", "ctr", "runc", "ip"} {
		_, err := exec.LookPath(name)
		need(t, name, err)
	}
	for _, path := range []string{
		filepath.Join(cniPrograms, "ptp"), "/bin/busybox",
		filepath.Join(programs, "node-healer"), filepath.Join(programs, "node-healer-worker"), filepath.Join(programs, "node-healer-gateway"),
	} {
		_, err := os.Stat(path)
		need(t, path, err)
	}
}

func need(t testing.TB, what string, err error) {
	t.Helper()
	switch {
	case err == nil:
	case os.Getenv("CI") != "":
		t.Fatalf("needs %s, and in CI a test that would skip fails (make e2e): %v", what, err)
	default:
		t.Skipf("needs %s, which make e2e brings: %v", what, err)
	}
}
