package integration

import (
	"slices"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
)

// leaders looks for a driver's leader as the CSI-Addons controller does for each
// NetworkFence (GetLeaderByDriver, internal/connection/connection_pool.go of
// csi-addons/kubernetes-csi-addons): the lease <driver>-csi-addons, in the
// namespace of whichever connection of that driver's name comes first. It tells
// what becomes of that for each connection that may be the first.
func leaders(t *testing.T, api *cluster.Cluster, driver string) (found []bool) {
	t.Helper()
	list, err := api.Dynamic().Resource(cluster.CSIAddonsNodes).List(t.Context(), metav1.ListOptions{})
	harness.Must(t, err)
	var pool []string // by namespace/name
	for _, node := range list.Items {
		pool = append(pool, node.GetNamespace()+"/"+node.GetName())
	}
	for _, node := range list.Items {
		name, _, err := unstructured.NestedString(node.Object, "spec", "driver", "name")
		harness.Must(t, err)
		if name != driver {
			continue
		}
		lease, err := api.Admin().CoordinationV1().Leases(node.GetNamespace()).Get(t.Context(), strings.ReplaceAll(driver, ".", "-")+"-csi-addons", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			found = append(found, false)
			continue
		}
		harness.Must(t, err)
		found = append(found, slices.Contains(pool, node.GetNamespace()+"/"+*lease.Spec.HolderIdentity))
	}
	return found
}

// TestDriversLeaderIsFound by the controller's rule, whichever connection comes
// first, beside a node healer that is registered under its own name. One that is
// registered under the driver's name in another namespace is what breaks it, and
// what the admission policy denies until it names the driver.
func TestDriversLeaderIsFound(t *testing.T) {
	r := newRegistered(t)
	const sidecar = "driver-controller"
	ns := r.api.Namespace(t)
	holder := sidecar
	cluster.Create(t, r.api, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "test-csi-example-com-csi-addons"},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder},
	})
	_, err := r.api.Dynamic().Resource(cluster.CSIAddonsNodes).Namespace(ns).Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "csiaddons.openshift.io/v1alpha1", "kind": "CSIAddonsNode", "metadata": map[string]any{"name": sidecar},
		"spec": map[string]any{"driver": map[string]any{"name": harness.Driver, "nodeID": "node-2", "endpoint": "pod://" + sidecar + "." + ns + ":9070"}},
	}}, metav1.CreateOptions{})
	harness.Must(t, err)
	const asDriver = thisNode + "-" + harness.Driver
	t.Cleanup(func() {
		r.api.Kubectl(t, "delete", "csiaddonsnode", "-n", ns, sidecar)
		r.api.Kubectl(t, "delete", "--ignore-not-found", "csiaddonsnode", "-n", ownNamespace, asDriver)
		r.api.Apply(t, manifests)
	})

	r.start()
	r.appears("")
	if found := leaders(t, r.api, harness.Driver); !slices.Equal(found, []bool{true}) {
		t.Errorf("beside our own name the driver's leader is found: %v", found)
	}

	r.gateway.Stop()
	r.startGateway("--register-as=" + harness.Driver)
	harness.Eventually(t, "the policy denies it", func() bool {
		return strings.Contains(r.gateway.Log.String(), "the gateway registers only "+ownName)
	})
	r.gateway.Stop()
	r.api.Kubectl(t, "patch", "validatingadmissionpolicy", gatewayName, "--type=json",
		`--patch=[{"op": "replace", "path": "/spec/variables/0/expression", "value": "[\"`+harness.Driver+`\"]"}]`)
	r.startGateway("--register-as=" + harness.Driver)
	harness.Eventually(t, "it is registered as the driver", func() bool {
		_, err := r.nodes().Get(t.Context(), asDriver, metav1.GetOptions{})
		return err == nil
	})
	if found := leaders(t, r.api, harness.Driver); len(found) != 2 || !slices.Contains(found, false) || !slices.Contains(found, true) {
		t.Errorf("beside the driver's name in another namespace its leader is found: %v", found)
	}
}
