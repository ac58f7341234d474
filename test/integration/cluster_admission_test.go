package integration

import (
	"fmt"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
)

// nodesTokens is an API with two nodes, and clients with the tokens of their pods.
type nodesTokens struct {
	t     *testing.T
	api   *cluster.Cluster
	nodes [2]*corev1.Node
}

func newNodesTokens(t *testing.T) *nodesTokens {
	t.Helper()
	n := &nodesTokens{t: t, api: cluster.Start(t)}
	n.api.InstallAddons(t)
	n.api.Apply(t, manifests)
	// Each registration's name begins as the other's.
	for i, name := range []string{"worker", "worker-2"} {
		n.nodes[i] = cluster.Create(t, n.api, cluster.Node(name))
	}
	return n
}

func clientOf(t *testing.T, kubeconfig string) dynamic.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	harness.Must(t, err)
	client, err := dynamic.NewForConfig(config)
	harness.Must(t, err)
	return client
}

// pods returns a client for the pod that a DaemonSet has on each node, and one whose
// token is no pod's.
func (n *nodesTokens) pods(set string) (each [2]dynamic.Interface, none dynamic.Interface) {
	n.t.Helper()
	for i, node := range n.nodes {
		_, kubeconfig := n.api.DaemonPod(n.t, ownNamespace, set, node.Name)
		each[i] = clientOf(n.t, kubeconfig)
	}
	return each, clientOf(n.t, n.api.Kubeconfig(n.t, ownNamespace, set))
}

// deniedByPolicy is true for the word of an admission policy of ours.
func deniedByPolicy(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "ValidatingAdmissionPolicy 'node-healer")
}

// must waits until the API does or denies what it should: a policy that was applied
// a moment ago does not count at once. What it should deny is only tried (dry run).
func (n *nodesTokens) must(what string, allow bool, try func(dryRun []string) error) {
	n.t.Helper()
	var err error
	dryRun := []string{metav1.DryRunAll}
	if allow {
		dryRun = nil
	}
	defer func() {
		if n.t.Failed() {
			n.t.Logf("%s: %v", what, err)
		}
	}()
	harness.Eventually(n.t, fmt.Sprintf("%s: allowed is %t", what, allow), func() bool {
		err = try(dryRun)
		return allow && err == nil || !allow && deniedByPolicy(err)
	})
}

// TestClaimsAreAnnotatedForTheOwnNodeOnly tries everything that a node's token could
// change on a claim.
func TestClaimsAreAnnotatedForTheOwnNodeOnly(t *testing.T) {
	n := newNodesTokens(t)
	ns := n.api.Namespace(t)
	class, yes := cluster.StorageClass("resizable", harness.Driver), true
	class.AllowVolumeExpansion = &yes
	cluster.Create(t, n.api, class)
	_, claim := n.api.Bind(t, cluster.Volume{PV: "annotated", ID: "annotated", Driver: harness.Driver, Namespace: ns, Claim: "data", Class: class.Name})
	clients, none := n.pods("node-healer")
	claims := func(c dynamic.Interface) dynamic.ResourceInterface {
		return c.Resource(corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims")).Namespace(ns)
	}
	patch := func(c dynamic.Interface, change string) func(dryRun []string) error {
		return func(dryRun []string) error {
			_, err := claims(c).Patch(t.Context(), claim.Name, types.MergePatchType, []byte(change), metav1.PatchOptions{DryRun: dryRun})
			return err
		}
	}
	annotation := func(node int, value string) string {
		return fmt.Sprintf(`{"metadata": {"annotations": {"csiaddons.openshift.io/volumehealth.%s": %s}}}`, n.nodes[node].UID, value)
	}
	first := clients[0]
	n.must("another node's annotation", false, patch(first, annotation(1, `"x"`)))
	n.must("the own annotation", true, patch(first, annotation(0, `"x"`)))
	n.must("another value of it", true, patch(first, annotation(0, `"y"`)))
	n.must("as large as ours may be", true, patch(first, annotation(0, `"`+strings.Repeat("y", 1024)+`"`)))
	n.must("more bytes, of fewer characters", false, patch(first, annotation(0, `"`+strings.Repeat("ü", 513)+`"`)))
	n.must("the second node's own", true, patch(clients[1], annotation(1, `"x"`)))
	n.must("the first node's, by the second", false, patch(clients[1], annotation(0, `"z"`)))
	n.must("to remove another node's", false, patch(first, annotation(1, `null`)))
	n.must("to remove the own", true, patch(first, annotation(0, `null`)))
	n.must("a token that names no node", false, patch(none, annotation(0, `"x"`)))
	for what, change := range map[string]string{
		"another annotation":      `{"metadata": {"annotations": {"example.com/mine": "x"}}}`,
		"a mode":                  `{"metadata": {"annotations": {"node-healer.csi-addons.io/mode": "off"}}}`,
		"a label":                 `{"metadata": {"labels": {"x": "y"}}}`,
		"a finalizer":             `{"metadata": {"finalizers": ["example.com/x"]}}`,
		"an owner":                `{"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "x"}]}}`,
		"more space":              `{"spec": {"resources": {"requests": {"storage": "1Ti"}}}}`,
		"the own, and one more":   fmt.Sprintf(`{"metadata": {"labels": {"x": "y"}, "annotations": {"csiaddons.openshift.io/volumehealth.%s": "x"}}}`, n.nodes[0].UID),
		"one that begins as ours": fmt.Sprintf(`{"metadata": {"annotations": {"csiaddons.openshift.io/volumehealth.%s.x": "x"}}}`, n.nodes[0].UID),
	} {
		n.must(what, false, patch(first, change))
	}
	// Others are not held to it.
	n.must("an administrator", true, patch(n.api.Dynamic(), `{"metadata": {"labels": {"x": "y"}}}`))
	// What is a role's business, a policy denies too.
	n.api.Grant(t, ownNamespace, ownAccount, rbacv1.PolicyRule{
		APIGroups: []string{""}, Resources: []string{"persistentvolumeclaims", "persistentvolumeclaims/status"}, Verbs: []string{"delete", "patch"},
	})
	n.must("to delete it", false, func(dryRun []string) error {
		return claims(first).Delete(t.Context(), claim.Name, metav1.DeleteOptions{DryRun: dryRun})
	})
	n.must("its status", false, func(dryRun []string) error {
		_, err := claims(first).Patch(t.Context(), claim.Name, types.MergePatchType, []byte(`{"status": {"phase": "Lost"}}`), metav1.PatchOptions{DryRun: dryRun}, "status")
		return err
	})
}

// TestOnlyTheOwnNodeIsRegistered tries everything that a node's token could change on
// registrations, and to take the name of another's before that node has it.
func TestOnlyTheOwnNodeIsRegistered(t *testing.T) {
	n := newNodesTokens(t)
	clients, none := n.pods(gatewayName)
	n.api.Grant(t, ownNamespace, gatewayName, rbacv1.PolicyRule{
		APIGroups: []string{"csiaddons.openshift.io"}, Resources: []string{"csiaddonsnodes", "csiaddonsnodes/status"}, Verbs: []string{"create", "patch", "delete"},
	})
	nodes := func(c dynamic.Interface) dynamic.ResourceInterface {
		return c.Resource(cluster.CSIAddonsNodes).Namespace(ownNamespace)
	}
	object := func(name, driver, node string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "csiaddons.openshift.io/v1alpha1", "kind": "CSIAddonsNode", "metadata": map[string]any{"name": name},
			"spec": map[string]any{"driver": map[string]any{"name": driver, "nodeID": node, "endpoint": "pod://p.ns:9070"}},
		}}
	}
	const own, theirs, driver = "worker-" + ownName, "worker-2-" + ownName, "a-drivers"
	t.Cleanup(func() {
		n.api.Kubectl(t, "delete", "--ignore-not-found", "csiaddonsnode", "-n", ownNamespace, own, theirs, driver)
	})
	create := func(c dynamic.Interface, o *unstructured.Unstructured) func(dryRun []string) error {
		return func(dryRun []string) error {
			_, err := nodes(c).Create(t.Context(), o, metav1.CreateOptions{DryRun: dryRun})
			return err
		}
	}
	patch := func(c dynamic.Interface, name string, subresources ...string) func(dryRun []string) error {
		body := []byte(`{"metadata": {"annotations": {"x": "y"}}, "status": {"state": "Failed"}}`)
		return func(dryRun []string) error {
			_, err := nodes(c).Patch(t.Context(), name, types.MergePatchType, body, metav1.PatchOptions{DryRun: dryRun}, subresources...)
			return err
		}
	}
	remove := func(c dynamic.Interface, name string) func(dryRun []string) error {
		return func(dryRun []string) error {
			return nodes(c).Delete(t.Context(), name, metav1.DeleteOptions{DryRun: dryRun})
		}
	}
	first := clients[0]
	n.must("another node", false, create(first, object(theirs, ownName, "worker-2")))
	n.must("another node, by the own name", false, create(first, object(own, ownName, "worker-2")))
	n.must("a driver's name", false, create(first, object("worker-"+harness.Driver, harness.Driver, "worker")))
	n.must("a token that names no node", false, create(none, object(own, ownName, "worker")))
	for _, name := range []string{theirs, "worker-2", "worker", "anything", own + "-2", "x-" + own, "worker-" + strings.Repeat("x", 200) + "-0123456789abcdef"} {
		n.must("the own node, by the name "+name, false, create(first, object(name, ownName, "worker")))
	}
	n.must("the first node's name, by the second", false, create(clients[1], object(own, ownName, "worker-2")))
	n.must("the own node", true, create(first, object(own, ownName, "worker")))
	n.must("the second node, by the second", true, create(clients[1], object(theirs, ownName, "worker-2")))
	n.must("a driver's, by an administrator", true, create(n.api.Dynamic(), object(driver, harness.Driver, "worker")))
	n.must("to change the own", true, patch(first, own))
	for _, name := range []string{theirs, driver} {
		n.must("to change "+name, false, patch(first, name))
		n.must("to change the status of "+name, false, patch(first, name, "status"))
		n.must("to delete "+name, false, remove(first, name))
	}
	n.must("to delete the own", true, remove(first, own))
	n.must("to delete a driver's, by an administrator", true, remove(n.api.Dynamic(), driver))
}

// TestNameOfADriverWithCapitals is one that a policy has to be told of.
func TestNameOfADriverWithCapitals(t *testing.T) {
	n := newNodesTokens(t)
	clients, _ := n.pods(gatewayName)
	n.api.Kubectl(t, "patch", "validatingadmissionpolicy", gatewayName, "--type=json",
		`--patch=[{"op": "replace", "path": "/spec/variables/0/expression", "value": "[\"Rbd.CSI.ceph.com\"]"}]`)
	defer n.api.Apply(t, manifests)
	for name, allow := range map[string]bool{"worker-rbd.csi.ceph.com": true, "worker-rbd": false} {
		n.must(name, allow, func([]string) error {
			_, err := clients[0].Resource(cluster.CSIAddonsNodes).Namespace(ownNamespace).Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "csiaddons.openshift.io/v1alpha1", "kind": "CSIAddonsNode", "metadata": map[string]any{"name": name},
				"spec": map[string]any{"driver": map[string]any{"name": "Rbd.CSI.ceph.com", "nodeID": "worker", "endpoint": "pod://p.ns:9070"}},
			}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return err
		})
	}
}

// TestOnlyTheOwnNodesConditionIsWritten tries everything that a gateway's token could change on
// Nodes.
func TestOnlyTheOwnNodesConditionIsWritten(t *testing.T) {
	n := newNodesTokens(t)
	clients, none := n.pods(gatewayName)
	// What is a role's business, a policy denies too.
	n.api.Grant(t, ownNamespace, gatewayName, rbacv1.PolicyRule{
		APIGroups: []string{""}, Resources: []string{"nodes", "nodes/status"}, Verbs: []string{"patch", "update", "create", "delete"},
	})
	nodes := func(c dynamic.Interface) dynamic.ResourceInterface {
		return c.Resource(corev1.SchemeGroupVersion.WithResource("nodes"))
	}
	patch := func(c dynamic.Interface, node int, change string, subresources ...string) func(dryRun []string) error {
		return func(dryRun []string) error {
			_, err := nodes(c).Patch(t.Context(), n.nodes[node].Name, types.StrategicMergePatchType, []byte(change), metav1.PatchOptions{DryRun: dryRun}, subresources...)
			return err
		}
	}
	status := func(what string) string { return `{"status": {` + what + `}}` }
	condition := func(kind, value string) string {
		return status(`"conditions": [{"type": "` + kind + `", "status": "` + value + `", "reason": "X", "message": "x"}]`)
	}
	first := clients[0]
	n.must("kubelet's condition, by an administrator", true, patch(n.api.Dynamic(), 0, condition("Ready", "True"), "status"))
	n.must("ours, of another node", false, patch(first, 1, condition("CSIVolumeProblem", "True"), "status"))
	n.must("ours, by a token that names no node", false, patch(none, 0, condition("CSIVolumeProblem", "True"), "status"))
	n.must("ours", true, patch(first, 0, condition("CSIVolumeProblem", "True"), "status"))
	n.must("ours, changed", true, patch(first, 0, condition("CSIVolumeProblem", "False"), "status"))
	for what, change := range map[string]string{
		"kubelet's":       condition("Ready", "False"),
		"a new one":       condition("Other", "True"),
		"kubelet's, gone": status(`"conditions": [{"$patch": "delete", "type": "Ready"}]`),
		"all, gone":       status(`"conditions": null`),
		"its capacity":    status(`"capacity": {"cpu": "7"}`),
		"its room":        status(`"allocatable": {"cpu": "7"}`),
		"its address":     status(`"addresses": [{"type": "InternalIP", "address": "10.9.9.9"}]`),
		"its kubelet":     status(`"daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}`),
		"its machine":     status(`"nodeInfo": {"machineID": "x"}`),
		"its images":      status(`"images": [{"names": ["x"], "sizeBytes": 1}]`),
		"its volumes":     status(`"volumesInUse": ["kubernetes.io/csi/x^y"]`),
		"what it has":     status(`"volumesAttached": [{"name": "x", "devicePath": "y"}]`),
		"a label":         `{"metadata": {"labels": {"x": "y"}}}`,
		"an annotation":   `{"metadata": {"annotations": {"node-healer.csi-addons.io/mode": "off"}}}`,
		"a finalizer":     `{"metadata": {"finalizers": ["example.com/x"]}}`,
	} {
		n.must(what, false, patch(first, 0, change, "status"))
	}
	if os.Getenv("TEST_KUBERNETES") == "" { // an older one has no such field
		n.must("its features", false, patch(first, 0, status(`"declaredFeatures": ["X"]`), "status"))
	}
	for what, change := range map[string]string{"a taint": `{"spec": {"taints": [{"key": "x", "effect": "NoExecute"}]}}`, "to cordon": `{"spec": {"unschedulable": true}}`} {
		n.must(what, false, patch(first, 0, change))
	}
	n.must("to delete it", false, func(dryRun []string) error {
		return nodes(first).Delete(t.Context(), n.nodes[0].Name, metav1.DeleteOptions{DryRun: dryRun})
	})
	n.must("to remove ours", true, patch(first, 0, status(`"conditions": [{"$patch": "delete", "type": "CSIVolumeProblem"}]`), "status"))
}
