package harness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// previousSource is the source of the version before this one; its README says of which
// commit, and why it is kept.
const previousSource = "../harness/previous/node-healer.tar.gz"

// Previous builds the server and the worker of the version before this one, once, with
// the tag `faults`, and returns the server's path.
func Previous(t testing.TB) string {
	t.Helper()
	NeedsHost(t, "Go")
	dir, err := buildOnce("previous", buildPrevious)
	Must(t, err)
	return filepath.Join(dir, "node-healer")
}

func buildPrevious(dir string) error {
	source := filepath.Join(dir, "source")
	if err := os.MkdirAll(source, 0o700); err != nil {
		return err
	}
	if out, err := exec.Command("tar", "-xzf", previousSource, "-C", source).CombinedOutput(); err != nil {
		return fmt.Errorf("unpack %s: %w\n%s", previousSource, err, out)
	}
	// With -trimpath the result does not depend on where it was unpacked: it comes from
	// the build cache the next time.
	cmd := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-tags=faults,grpcnotrace", "-o", dir+"/",
		"./cmd/node-healer", "./cmd/node-healer-worker")
	cmd.Dir, cmd.Env = source, append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the version before: %w\n%s", err, out)
	}
	return nil
}
