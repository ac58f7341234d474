package integration

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/csi-addons/node-healer/pkg/api/registration"
	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
)

// registered is a member that makes itself known to the CSI-Addons controller.
type registered struct{ *reachable }

// ownName is what a node healer calls itself.
const (
	ownName        = "node-healer.csi-addons.io"
	registeredName = thisNode + "-" + ownName
)

// newRegistered starts nothing.
func newRegistered(t *testing.T) *registered {
	t.Helper()
	m := newMember(t)
	m.api.InstallAddons(t)
	r := &registered{newUnreached(t, m)}
	if r.now() != nil { // another test's: it is not garbage-collected
		r.change(`{"metadata": {"finalizers": null}}`)
		r.remove()
	}
	return r
}

// start starts server and gateway.
func (r *registered) start() {
	r.T.Helper()
	r.Start()
	r.startGateway()
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

// withoutTime leaves of a registration what was written into it, with a known
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
	annotations := meta["annotations"].(map[string]any)
	annotations[updated] = sometime
	if _, err := registration.Certificate(node.GetAnnotations()); err != nil {
		t.Error(err)
	}
	delete(annotations, registration.CertificateAnnotation)
	delete(annotations, registration.PublicKeyAnnotation)
	raw, err := json.MarshalIndent(node.Object, "", "  ")
	harness.Must(t, err)
	return string(raw)
}

// TestRegistration makes and renews what the CSI-Addons sidecar would make for
// this pod, but for the name, and that it belongs to the pod.
func TestRegistration(t *testing.T) {
	r := newRegistered(t)
	r.start()
	want := strings.NewReplacer("<pod>", r.pod.Name, "<uid>", string(r.pod.UID),
		"<port>", r.gateway.Address[strings.LastIndex(r.gateway.Address, ":")+1:], "<time>", sometime).Replace(`{
  "apiVersion": "csiaddons.openshift.io/v1alpha1",
  "kind": "CSIAddonsNode",
  "metadata": {
    "annotations": {
      "sidecar.csiaddons.openshift.io/createdByPodUID": "<uid>",
      "sidecar.csiaddons.openshift.io/lastUpdatedAt": "<time>"
    },
    "name": "node-1-node-healer.csi-addons.io",
    "namespace": "csi-addons-node-healer",
    "ownerReferences": [
      {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": "<pod>",
        "uid": "<uid>"
      }
    ]
  },
  "spec": {
    "driver": {
      "endpoint": "pod://<pod>.csi-addons-node-healer:<port>",
      "name": "node-healer.csi-addons.io",
      "nodeID": "node-1"
    }
  }
}`)
	if got := withoutTime(t, r.appears("")); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	t.Run("in another pod", func(t *testing.T) {
		r.change(`{"metadata": {"finalizers": ["csiaddons.openshift.io/csiaddonsnode"], "annotations": {
			"csiaddons.openshift.io/networkfenceclass-names": "[]"}}}`)
		r.change(`{"status": {"state": "Connected"}}`, "status")
		before := r.now()
		r.gateway.Stop()
		if r.now() == nil {
			t.Fatal("the registration went with the gateway")
		}
		r.newPod()
		r.startGateway()
		harness.Eventually(t, "the renewal", func() bool {
			return r.now().GetAnnotations()["sidecar.csiaddons.openshift.io/createdByPodUID"] == string(r.pod.UID)
		})
		after := r.now()
		if before.GetUID() != after.GetUID() || after.GetOwnerReferences()[0].UID != r.pod.UID {
			t.Errorf("it is another object, or not the pod's: %+v", after)
		}
		if len(after.GetFinalizers()) != 1 || after.GetAnnotations()["csiaddons.openshift.io/networkfenceclass-names"] != "[]" || after.Object["status"] == nil {
			t.Errorf("what others wrote is gone: %+v", after)
		}
		r.change(`{"metadata": {"finalizers": null}}`)
	})
}

// TestRegistrationThatIsDeleted makes a deleted registration again, once the controller has
// removed its finalizer.
func TestRegistrationThatIsDeleted(t *testing.T) {
	r := newRegistered(t)
	r.start()
	first := r.appears("")
	r.change(`{"metadata": {"finalizers": ["csiaddons.openshift.io/csiaddonsnode"]}}`)
	r.remove()
	if now := r.now(); now == nil || now.GetDeletionTimestamp() == nil {
		t.Fatalf("it has no finalizer: %v", now)
	}
	r.change(`{"metadata": {"finalizers": null}}`)
	r.appears(first.GetUID())
}

// driver is under which name it is registered.
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

// TestRegistrationWithoutTheDefinition logs once that there is no controller, admits
// callers all the same, and registers when the definition exists.
func TestRegistrationWithoutTheDefinition(t *testing.T) {
	r := newRegistered(t)
	r.api.RemoveAddons(t)
	r.start()
	const says = "the CSI-Addons controller is not installed"
	harness.Eventually(t, "it is said", func() bool { return strings.Contains(r.gateway.Log.String(), says) })
	harness.Must(t, identify(within(t), r.dial(r.controllerToken())))
	r.api.InstallAddons(t)
	r.appears("")
	if n := strings.Count(r.gateway.Log.String(), says); n != 1 {
		t.Errorf("it is said %d times", n)
	}
}

// TestRegistrationAfterAnOutage comes when the API does, and the server.
func TestRegistrationAfterAnOutage(t *testing.T) {
	r := newRegistered(t)
	r.api.KillAPI(t)
	r.startGateway()
	r.api.StartAPI(t)
	harness.Eventually(t, "the gateway misses its server", func() bool {
		return strings.Contains(r.gateway.Log.String(), "ask the server for its name")
	})
	if r.now() != nil {
		t.Error("it is registered without a server")
	}
	r.Start()
	r.appears("")
}
