package gateway

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// csiAddonsNodes is what the CSI-Addons controller watches to find servers
// (github.com/csi-addons/kubernetes-csi-addons, docs/csiaddonsnode.md).
var csiAddonsNodes = schema.GroupVersionResource{
	Group: "csiaddons.openshift.io", Version: "v1alpha1", Resource: "csiaddonsnodes",
}

const (
	// The controller reconnects when an annotation changes, as lastUpdatedAt does with
	// every start. The names are the CSI-Addons sidecar's.
	createdByAnnotation = "sidecar.csiaddons.openshift.io/createdByPodUID"
	updatedAtAnnotation = "sidecar.csiaddons.openshift.io/lastUpdatedAt"

	maxNameBytes  = 253 // of an object, DNS-1123
	nameHashBytes = 8
)

// objectName returns the same for every pod that serves a node under a name, so that
// each start renews one object. A driver's name may have capitals (RFC 1035), an
// object's may not.
func objectName(node, name string) string {
	whole := strings.ToLower(node + "-" + name)
	if len(whole) <= maxNameBytes {
		return whole
	}
	sum := sha256.Sum256([]byte(whole))
	hash := hex.EncodeToString(sum[:nameHashBytes])
	// The name must not have a dot before the dash.
	return strings.TrimRight(whole[:maxNameBytes-1-len(hash)], ".") + "-" + hash
}

// endpoint returns a URL that the controller resolves to the pod's address.
func (c RegistrationConfig) endpoint() string {
	return fmt.Sprintf("pod://%s.%s:%d", c.Pod, c.Namespace, c.Port)
}

// object returns the CSIAddonsNode, which is also a merge patch: what others wrote,
// such as the controller's finalizer and status, stays.
func (c RegistrationConfig) object(name string, now time.Time) *unstructured.Unstructured {
	node := &unstructured.Unstructured{Object: map[string]any{
		"spec": map[string]any{
			"driver": map[string]any{"name": name, "nodeID": c.Node, "endpoint": c.endpoint()},
		},
	}}
	node.SetGroupVersionKind(csiAddonsNodes.GroupVersion().WithKind("CSIAddonsNode"))
	node.SetNamespace(c.Namespace)
	node.SetName(objectName(c.Node, name))
	node.SetAnnotations(map[string]string{
		createdByAnnotation: c.PodUID,
		updatedAtAnnotation: now.UTC().Format(time.RFC3339),
	})
	// Deleted with the pod that serves it: a node that is removed leaves nothing.
	node.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: c.Pod, UID: types.UID(c.PodUID)}})
	return node
}
