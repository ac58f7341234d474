package cluster_test

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
)

func TestManifestsAppliedAgainUndoWhatATestChanged(t *testing.T) {
	c := cluster.Start(t)
	c.Apply(t, "deploy/daemonset")
	ns := "csi-addons-node-healer"
	get := func() *appsv1.DaemonSet {
		set, err := c.Admin().AppsV1().DaemonSets(ns).Get(t.Context(), "node-healer", metav1.GetOptions{})
		harness.Must(t, err)
		return set
	}
	before := get()
	cluster.Change(t, c, before, func(set *appsv1.DaemonSet) {
		set.Spec.Template.Spec.Containers[0].Image = "registry.example.com/other"
	})
	c.Apply(t, "deploy/daemonset")
	if want, got := before.Spec.Template.Spec.Containers[0].Image, get().Spec.Template.Spec.Containers[0].Image; got != want {
		t.Errorf("the image is %s, not %s", got, want)
	}
}

func TestWhoAClientIs(t *testing.T) {
	c := cluster.Start(t)
	ns := c.Namespace(t)
	c.Account(t, ns, "me")
	who := c.Kubectl(t, "--kubeconfig="+c.Kubeconfig(t, ns, "me"), "auth", "whoami")
	if !strings.Contains(who, "system:serviceaccount:"+ns+":me") {
		t.Errorf("the kubeconfig is another user's: %s", who)
	}
	if out, err := c.TryKubectl("auth", "can-i", "get", "pods", "--as=system:serviceaccount:"+ns+":me"); err == nil {
		t.Errorf("it may read pods: %s", out)
	}
}

func TestCSIAddonsNodes(t *testing.T) {
	c := cluster.Start(t)
	c.InstallAddons(t)
	ns := c.Namespace(t)
	nodes := c.Dynamic().Resource(cluster.CSIAddonsNodes).Namespace(ns)
	node := func(driver map[string]any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "csiaddons.openshift.io/v1alpha1", "kind": "CSIAddonsNode",
			"metadata": map[string]any{"name": "n1"}, "spec": map[string]any{"driver": driver},
		}}
	}

	_, err := nodes.Create(t.Context(), node(map[string]any{"name": "d", "nodeID": "n1"}), metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) {
		t.Errorf("one without endpoint: %v", err)
	}
	_, err = nodes.Create(t.Context(), node(map[string]any{"name": "d", "nodeID": "n1", "endpoint": "pod://p.ns:9070"}), metav1.CreateOptions{})
	harness.Must(t, err)
	_, err = nodes.Patch(t.Context(), "n1", types.MergePatchType, []byte(`{"spec":{"driver":{"name":"other"}}}`), metav1.PatchOptions{})
	if !apierrors.IsInvalid(err) {
		t.Errorf("one that changes its driver: %v", err)
	}
	connected := []byte(`{"status":{"state":"Connected","capabilities":["node_healer.HEAL"]}}`)
	_, err = nodes.Patch(t.Context(), "n1", types.MergePatchType, connected, metav1.PatchOptions{}, "status")
	harness.Must(t, err)
	if state := c.Kubectl(t, "get", "csiaddonsnode/n1", "-n", ns, "-o=jsonpath={.status.state}"); state != "Connected" {
		t.Errorf("the controller's answer is %q", state)
	}

	c.RemoveAddons(t)
	if _, err := nodes.Get(t.Context(), "n1", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("still there without its definition: %v", err)
	}
}
