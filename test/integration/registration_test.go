package integration

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/csi-addons/node-healer/pkg/kube"
	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
)

// registered is a member whose server runs in a pod of the shipped DaemonSet, as
// far as the API knows, and makes itself known to the CSI-Addons controller.
type registered struct {
	*member
	set     *appsv1.DaemonSet
	pod     *corev1.Pod
	address string
	args    []string
}

const registeredName = thisNode + "-" + ownNamespace + "-daemonset-node-healer"

// newRegistered starts no server.
func newRegistered(t *testing.T) *registered {
	t.Helper()
	r := &registered{member: newMember(t), address: freeAddress(t)}
	r.args = r.Args
	set, err := r.api.Admin().AppsV1().DaemonSets(ownNamespace).Get(t.Context(), "node-healer", metav1.GetOptions{})
	harness.Must(t, err)
	r.set = set
	if r.now() != nil { // another test's: nobody collects it
		r.change(`{"metadata": {"finalizers": null}}`)
		r.remove()
	}
	r.newPod()
	return r
}

// newPod gives the server another pod, from its next start on.
func (r *registered) newPod(change ...func(*corev1.Pod)) {
	r.T.Helper()
	if r.pod != nil {
		cluster.Delete(r.T, r.api, r.pod)
	}
	pod := cluster.PodOf(r.set, thisNode)
	for _, c := range change {
		c(pod)
	}
	r.pod = cluster.Create(r.T, r.api, pod)
	r.Args = append(r.args[:len(r.args):len(r.args)],
		"--controller-endpoint=tcp://"+r.address, "--pod-name="+r.pod.Name, "--pod-uid="+string(r.pod.UID))
}

func (r *registered) nodes() dynamic.ResourceInterface {
	return r.api.Dynamic().Resource(cluster.CSIAddonsNodes).Namespace(ownNamespace)
}

// now is the registration; nil when there is none.
func (r *registered) now() *unstructured.Unstructured {
	r.T.Helper()
	node, err := r.nodes().Get(r.T.Context(), registeredName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	harness.Must(r.T, err)
	return node
}

// appears waits for a registration other than one that was there.
func (r *registered) appears(other types.UID) *unstructured.Unstructured {
	r.T.Helper()
	var node *unstructured.Unstructured
	harness.Eventually(r.T, "the registration", func() bool {
		node = r.now()
		return node != nil && node.GetUID() != other && node.GetDeletionTimestamp() == nil
	})
	return node
}

func (r *registered) change(patch string, subresources ...string) {
	r.T.Helper()
	_, err := r.nodes().Patch(r.T.Context(), registeredName, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresources...)
	harness.Must(r.T, err)
}

// remove deletes it as a person does.
func (r *registered) remove() {
	r.T.Helper()
	r.api.Kubectl(r.T, "delete", "--wait=false", "csiaddonsnodes", "-n", ownNamespace, registeredName)
}

const sometime = "some time"

// withoutTime leaves of a registration what somebody wrote into it, with a known
// time instead of the last update's.
func withoutTime(t *testing.T, node *unstructured.Unstructured) string {
	t.Helper()
	const updated = "sidecar.csiaddons.openshift.io/lastUpdatedAt"
	meta := node.Object["metadata"].(map[string]any)
	for _, own := range []string{"uid", "resourceVersion", "creationTimestamp", "generation", "managedFields"} {
		delete(meta, own)
	}
	at, err := time.Parse(time.RFC3339, node.GetAnnotations()[updated])
	harness.Must(t, err)
	if at.Location() != time.UTC {
		t.Errorf("the time is %s", node.GetAnnotations()[updated])
	}
	meta["annotations"].(map[string]any)[updated] = sometime
	raw, err := json.MarshalIndent(node.Object, "", "  ")
	harness.Must(t, err)
	return string(raw)
}

// TestRegistration makes and renews the object that the CSI-Addons sidecar would
// make for this pod.
func TestRegistration(t *testing.T) {
	r := newRegistered(t)
	r.api.InstallAddons(t)
	r.Start()
	want := strings.NewReplacer("<pod>", r.pod.Name, "<uid>", string(r.pod.UID), "<port>", r.address[strings.LastIndex(r.address, ":")+1:],
		"<owner>", string(r.set.UID), "<time>", sometime).Replace(`{
  "apiVersion": "csiaddons.openshift.io/v1alpha1",
  "kind": "CSIAddonsNode",
  "metadata": {
    "annotations": {
      "sidecar.csiaddons.openshift.io/createdByPodUID": "<uid>",
      "sidecar.csiaddons.openshift.io/lastUpdatedAt": "<time>"
    },
    "name": "node-1-csi-addons-node-healer-daemonset-node-healer",
    "namespace": "csi-addons-node-healer",
    "ownerReferences": [
      {
        "apiVersion": "apps/v1",
        "controller": true,
        "kind": "DaemonSet",
        "name": "node-healer",
        "uid": "<owner>"
      }
    ]
  },
  "spec": {
    "driver": {
      "endpoint": "pod://<pod>.csi-addons-node-healer:<port>",
      "name": "test.csi.example.com",
      "nodeID": "node-1"
    }
  }
}`)
	if got := withoutTime(t, r.appears("")); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}

	t.Run("restarted", func(t *testing.T) {
		const long = "2020-01-01T00:00:00Z"
		r.change(`{"metadata": {"finalizers": ["csiaddons.openshift.io/csiaddonsnode"], "annotations": {
			"csiaddons.openshift.io/networkfenceclass-names": "[]", "sidecar.csiaddons.openshift.io/lastUpdatedAt": "` + long + `"}}}`)
		r.change(`{"status": {"state": "Connected"}}`, "status")
		before := r.now()
		r.Stop()
		if r.now() == nil {
			t.Fatal("the registration went with the server")
		}
		r.Start()
		harness.Eventually(t, "the renewal", func() bool {
			return r.now().GetAnnotations()["sidecar.csiaddons.openshift.io/lastUpdatedAt"] != long
		})
		after := r.now()
		if before.GetUID() != after.GetUID() {
			t.Error("it is another object")
		}
		if before, after := withoutTime(t, before), withoutTime(t, after); before != after {
			t.Errorf("more was changed than the time: %s\nwas %s", after, before)
		}
	})
	t.Run("in another pod", func(t *testing.T) {
		r.Stop()
		before := string(r.pod.UID)
		r.newPod()
		r.Start()
		harness.Eventually(t, "the renewal", func() bool {
			return r.now().GetAnnotations()["sidecar.csiaddons.openshift.io/createdByPodUID"] == string(r.pod.UID)
		})
		if string(r.pod.UID) == before {
			t.Error("it is the same pod")
		}
		r.change(`{"metadata": {"finalizers": null}}`)
	})
}

// TestRegistrationThatIsDeleted makes it anew, at once or as soon as the
// controller lets go of it.
func TestRegistrationThatIsDeleted(t *testing.T) {
	r := newRegistered(t)
	r.api.InstallAddons(t)
	r.Start()
	first := r.appears("")
	r.remove()
	second := r.appears(first.GetUID())

	r.change(`{"metadata": {"finalizers": ["csiaddons.openshift.io/csiaddonsnode"]}}`)
	r.remove()
	if now := r.now(); now == nil || now.GetDeletionTimestamp() == nil {
		t.Fatalf("it has no finalizer: %v", now)
	}
	r.change(`{"metadata": {"finalizers": null}}`)
	r.appears(second.GetUID())
}

// TestRegistrationOfARenamedDriver makes it anew under the new name, as soon as
// the controller lets go of the old one.
func TestRegistrationOfARenamedDriver(t *testing.T) {
	r := newRegistered(t)
	r.api.InstallAddons(t)
	r.Start()
	first := r.appears("")
	r.change(`{"metadata": {"finalizers": ["csiaddons.openshift.io/csiaddonsnode"]}}`)
	r.Stop()
	r.args = append(r.args, "--driver-name=renamed.csi.example.com")
	r.newPod()
	r.Start()
	harness.Eventually(t, "the old one goes", func() bool { return r.now().GetDeletionTimestamp() != nil })
	r.change(`{"metadata": {"finalizers": null}}`)
	r.appears(first.GetUID())
	if got := r.driver(); got != "renamed.csi.example.com" {
		t.Errorf("the driver is %s", got)
	}
}

// driver is whose registration it is.
func (r *registered) driver() string {
	r.T.Helper()
	node := r.now()
	if node == nil {
		return ""
	}
	name, _, err := unstructured.NestedString(node.Object, "spec", "driver", "name")
	harness.Must(r.T, err)
	return name
}

// TestRegistrationAfterANewOwner: a DaemonSet that is made anew without its pods
// adopts them, and an owner that is gone would take the registration along.
func TestRegistrationAfterANewOwner(t *testing.T) {
	r := newRegistered(t)
	r.api.InstallAddons(t)
	r.Start()
	r.appears("")
	r.pod = cluster.Change(t, r.api, r.pod, func(p *corev1.Pod) { p.OwnerReferences[0].UID = "of-another-set" })
	r.remove()
	harness.Eventually(t, "one with the new owner", func() bool {
		node := r.now()
		return node != nil && node.GetOwnerReferences()[0].UID == "of-another-set"
	})
}

// TestRegistrationWithoutTheDefinition says once that there is no controller,
// heals all the same, and registers when one comes.
func TestRegistrationWithoutTheDefinition(t *testing.T) {
	r := newRegistered(t)
	r.api.RemoveAddons(t)
	r.Start()
	const says = "the CSI-Addons controller is not installed"
	harness.Eventually(t, "it is said", func() bool { return strings.Contains(r.Log.String(), says) })
	v := r.lost("unregistered")
	r.Expect("healed", v.Request())

	r.api.InstallAddons(t)
	r.appears("")
	r.api.RemoveAddons(t)
	harness.Eventually(t, "it is said again", func() bool { return strings.Count(r.Log.String(), says) == 2 })
	r.api.InstallAddons(t)
	r.appears("")
	if n := strings.Count(r.Log.String(), says); n != 2 {
		t.Errorf("it is said %d times", n)
	}
}

// TestRegistrationAfterAnOutage comes when the API does.
func TestRegistrationAfterAnOutage(t *testing.T) {
	r := newRegistered(t)
	r.api.InstallAddons(t)
	r.api.KillAPI(t)
	r.Start()
	r.api.StartAPI(t)
	first := r.appears("")
	r.api.KillAPI(t)
	r.api.StartAPI(t)
	r.remove()
	r.appears(first.GetUID())
}

// TestRegistrationWithLongNames is taken by the API, with no more rights than it
// needs, and is not another driver's.
func TestRegistrationWithLongNames(t *testing.T) {
	c := cluster.Start(t)
	c.InstallAddons(t)
	ns := c.Namespace(t)
	c.Account(t, ns, "server")
	c.Grant(t, ns, "server",
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}},
		rbacv1.PolicyRule{
			APIGroups: []string{"csiaddons.openshift.io"}, Resources: []string{"csiaddonsnodes"},
			Verbs: []string{"list", "watch", "create", "patch", "delete"},
		})
	node := strings.Repeat("n.", 100) + "example.com"
	set := cluster.Create(t, c, cluster.DaemonSet(ns, strings.Repeat("s", 40)))
	pod := cluster.PodOf(set, node)
	pod.Name = "server"
	pod = cluster.Create(t, c, pod)
	client, err := kube.NewClient(kube.ClientConfig{Kubeconfig: c.Kubeconfig(t, ns, "server")})
	harness.Must(t, err)
	run := func(t *testing.T, driver string) {
		t.Helper()
		r, err := kube.NewRegistration(client, kube.RegistrationConfig{
			Driver: driver, NodeID: node, Pod: pod.Name, Namespace: ns, PodUID: string(pod.UID), Port: 9070,
		})
		harness.Must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { r.Run(ctx) })
		t.Cleanup(func() { cancel(); running.Wait() })
	}
	nodes := c.Dynamic().Resource(cluster.CSIAddonsNodes).Namespace(ns)
	driverOf := func() string {
		list, err := nodes.List(t.Context(), metav1.ListOptions{})
		harness.Must(t, err)
		if len(list.Items) != 1 {
			return ""
		}
		name := list.Items[0].GetName()
		if !strings.HasPrefix(name, node[:100]) || len(name) > 253 {
			t.Errorf("the name is %s", name)
		}
		driver, _, err := unstructured.NestedString(list.Items[0].Object, "spec", "driver", "name")
		harness.Must(t, err)
		return driver
	}
	t.Run("first", func(t *testing.T) {
		run(t, "first.example.com")
		harness.Eventually(t, "the registration", func() bool { return driverOf() == "first.example.com" })
	})
	t.Run("another driver", func(t *testing.T) {
		run(t, "second.example.com")
		harness.Eventually(t, "the registration", func() bool { return driverOf() == "second.example.com" })
	})
}
