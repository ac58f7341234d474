package cluster

import (
	"testing"

	"github.com/csi-addons/node-healer/test/harness"
)

// needsPrograms returns the directory of programs of Kubernetes.
func needsPrograms(tb testing.TB, names ...string) string {
	tb.Helper()
	harness.NeedsHost(tb, "the programs of Kubernetes")
	return harness.NeedsBuilt(tb, "kubernetes", "controlplane", names...)
}
