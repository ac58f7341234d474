package cluster

import (
	"cmp"
	"os"
	"testing"

	"github.com/csi-addons/node-healer/test/harness"
)

// needsPrograms returns the directory of programs of Kubernetes. TEST_KUBERNETES is the
// directory beneath bin of another release (make kubernetes-1.32).
func needsPrograms(tb testing.TB, names ...string) string {
	tb.Helper()
	harness.NeedsHost(tb, "the programs of Kubernetes")
	return harness.NeedsBuilt(tb, "kubernetes", cmp.Or(os.Getenv("TEST_KUBERNETES"), "controlplane"), names...)
}

// Programs is the directory of the programs of Kubernetes, kubectl among them.
func (c *Cluster) Programs() string { return c.programs }
