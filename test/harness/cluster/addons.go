package cluster

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// The CSI-Addons controller's, as its project ships it.
const (
	AddonsNamespace = "csi-addons-system"
	AddonsAccount   = "csi-addons-controller-manager"
)

const addonsCRD = "test/harness/cluster/csiaddonsnodes.yaml"

// CSIAddonsNodes is for Dynamic: what the CSI-Addons controller reads.
var CSIAddonsNodes = schema.GroupVersionResource{
	Group: "csiaddons.openshift.io", Version: "v1alpha1", Resource: "csiaddonsnodes",
}

// InstallAddons brings what the CSI-Addons controller brings, without the
// controller: the definition of CSIAddonsNode and its account. Both stay.
func (c *Cluster) InstallAddons(tb testing.TB) {
	tb.Helper()
	c.Account(tb, AddonsNamespace, AddonsAccount)
	c.Apply(tb, addonsCRD)
	c.Kubectl(tb, "wait", "--for=condition=Established", "--timeout=5m", "crd/csiaddonsnodes.csiaddons.openshift.io")
}

// RemoveAddons removes that definition, and with it all CSIAddonsNodes.
func (c *Cluster) RemoveAddons(tb testing.TB) {
	tb.Helper()
	c.Kubectl(tb, "delete", "--ignore-not-found", "crd/csiaddonsnodes.csiaddons.openshift.io")
}
