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

// csiAddonsNodes is what the CSI-Addons controller watches to find whom it can
// call (github.com/csi-addons/kubernetes-csi-addons, docs/csiaddonsnode.md).
var csiAddonsNodes = schema.GroupVersionResource{
	Group: "csiaddons.openshift.io", Version: "v1alpha1", Resource: "csiaddonsnodes",
}

const (
	// The controller reconnects when an annotation changes: lastUpdatedAt does
	// with every start. The names are the CSI-Addons sidecar's.
	createdByAnnotation = "sidecar.csiaddons.openshift.io/createdByPodUID"
	updatedAtAnnotation = "sidecar.csiaddons.openshift.io/lastUpdatedAt"

	maxNameBytes  = 253 // of an object, DNS-1123
	nameHashBytes = 8
)

// objectName is the same for every pod that ever serves a node under a name, so
// that each start renews one object. A driver's name may have capitals (RFC 1035),
// an object's none.
func objectName(node, name string) string {
	whole := strings.ToLower(node + "-" + name)
	if len(whole) <= maxNameBytes {
		return whole
	}
	sum := sha256.Sum256([]byte(whole))
	hash := hex.EncodeToString(sum[:nameHashBytes])
	// A dot before the dash would make the name invalid.
	return strings.TrimRight(whole[:maxNameBytes-1-len(hash)], ".") + "-" + hash
}

// endpoint is resolved by the controller, which reads the pod's address.
func (c RegistrationConfig) endpoint() string {
	return fmt.Sprintf("pod://%s.%s:%d", c.Pod, c.Namespace, c.Port)
}

// object is the whole CSIAddonsNode as we want it. It serves as a merge patch
// too: what others wrote, as the controller's finalizer and status, stays.
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
	// It goes with the pod that serves it: a node that is removed leaves nothing.
	node.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: c.Pod, UID: types.UID(c.PodUID)}})
	return node
}
