package cluster_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
)

// Read through the typed client, so that it is seen as others see it.
func TestObjectsAreAsTheirOwnersWriteThem(t *testing.T) {
	c := cluster.Start(t)
	ns, api := c.Namespace(t), c.Admin()
	cluster.Create(t, c, cluster.Node("object-node"))
	cluster.Create(t, c, cluster.CSIDriver("object.csi.example.com", true))
	cluster.Create(t, c, cluster.StorageClass("object-class", "object.csi.example.com"))
	v := cluster.Volume{
		PV: "pv-object", ID: "vol-1", Driver: "object.csi.example.com", Namespace: ns, Claim: "data",
		Class: "object-class", Access: corev1.ReadWriteOncePod,
	}
	pv, claim := c.Bind(t, v)
	if pv.Status.Phase != corev1.VolumeBound || pv.Spec.ClaimRef.UID != claim.UID {
		t.Errorf("the volume is not bound to its claim: %+v", pv)
	}
	if claim.Status.Phase != corev1.ClaimBound || claim.Spec.VolumeName != pv.Name {
		t.Errorf("the claim is not bound to its volume: %+v", claim)
	}
	if a := cluster.Create(t, c, v.Attachment("object-node")); !a.Status.Attached {
		t.Errorf("not attached: %+v", a)
	}
	cluster.Create(t, c, cluster.Pod(ns, "app", "object-node", "data"))
	set := cluster.Create(t, c, cluster.DaemonSet(ns, "plugin"))
	cluster.Create(t, c, cluster.PodOf(set, "object-node"))

	pods, err := api.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=object-node"})
	harness.Must(t, err)
	if len(pods.Items) != 2 {
		t.Fatalf("%d pods are on the node, not 2", len(pods.Items))
	}
	for _, pod := range pods.Items {
		if pod.Status.Phase != corev1.PodRunning || !pod.Status.ContainerStatuses[0].Ready {
			t.Errorf("%s does not run: %+v", pod.Name, pod.Status)
		}
	}
	if owner := metav1.GetControllerOf(&pods.Items[1]); owner == nil || owner.UID != set.UID {
		t.Errorf("the plugin's pod is not its DaemonSet's: %+v", owner)
	}
}

func TestChange(t *testing.T) {
	c := cluster.Start(t)
	ns := c.Namespace(t)
	node := cluster.Create(t, c, cluster.Node("object-node"))
	pod := cluster.Create(t, c, cluster.Pod(ns, "app", "object-node"))

	node = cluster.Change(t, c, node, func(n *corev1.Node) {
		n.Spec.Unschedulable = true
		n.Spec.Taints = append(n.Spec.Taints, cluster.OutOfService())
	})
	if !node.Spec.Unschedulable || node.Spec.Taints[0] != cluster.OutOfService() {
		t.Errorf("the node is as it was: %+v", node.Spec)
	}
	pod = cluster.Change(t, c, pod, func(p *corev1.Pod) {
		p.Annotations = map[string]string{"a": "b"}
		cluster.Ready(p, false)
	})
	if pod.Annotations["a"] != "b" || pod.Status.ContainerStatuses[0].Ready {
		t.Errorf("the pod is as it was: %+v", pod)
	}
}

func TestWhatTerminatesIsThereUntilItIsDeleted(t *testing.T) {
	c := cluster.Start(t)
	ns, api := c.Namespace(t), c.Admin()
	cluster.Create(t, c, cluster.Node("object-node"))
	v := cluster.Volume{PV: "pv-object", ID: "vol-1", Driver: "object.csi.example.com", Namespace: ns, Claim: "data"}
	pv, claim := c.Bind(t, v)
	pod := cluster.Create(t, c, cluster.Pod(ns, "app", "object-node", "data"))
	attachment := cluster.Create(t, c, v.Attachment("object-node"))

	pod = cluster.Terminate(t, c, pod)
	attachment = cluster.Terminate(t, c, attachment)
	for _, object := range []cluster.Object{pod, attachment, cluster.Terminate(t, c, pv), cluster.Terminate(t, c, claim)} {
		if object.GetDeletionTimestamp() == nil {
			t.Errorf("%T does not terminate", object)
		}
	}
	if pod.Status.Phase != corev1.PodRunning || !attachment.Status.Attached {
		t.Errorf("terminating, and more than that: %+v, %+v", pod.Status, attachment.Status)
	}

	cluster.Delete(t, c, pod)
	cluster.Delete(t, c, attachment)
	if _, err := api.CoreV1().Pods(ns).Get(t.Context(), pod.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the pod is still there: %v", err)
	}
	if _, err := api.StorageV1().VolumeAttachments().Get(t.Context(), attachment.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the attachment is still there: %v", err)
	}
}

func TestNothingOfATestIsLeft(t *testing.T) {
	c := cluster.Start(t)
	ns := c.Namespace(t)
	t.Run("makes", func(t *testing.T) {
		cluster.Create(t, c, cluster.Node("object-node"))
		v := cluster.Volume{PV: "pv-object", ID: "vol-1", Driver: "object.csi.example.com", Namespace: ns, Claim: "data"}
		c.Bind(t, v)
		cluster.Terminate(t, c, cluster.Create(t, c, cluster.Pod(ns, "app", "object-node", "data")))
		cluster.Create(t, c, v.Attachment("object-node"))
		c.Account(t, ns, "me")
		c.Grant(t, ns, "me", rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}})
	})
	if left := c.Kubectl(t, "get", "nodes,pods,pv,pvc,volumeattachments", "-A", "-o=name"); left != "" {
		t.Errorf("left: %s", left)
	}
	if left := c.Kubectl(t, "get", "clusterroles,clusterrolebindings", "-o=name"); strings.Contains(left, "/test-") {
		t.Errorf("left: %s", left)
	}
}
