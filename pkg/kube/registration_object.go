package kube

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
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

	maxNameBytes = 253 // of an object, DNS-1123
	// nameHashBytes and cutNameBytes are the sidecar's: a name cut otherwise
	// would make a second object beside one that it made.
	nameHashBytes = 8
	cutNameBytes  = 251
)

// registrationName gives the same name to every pod that the owner ever has on
// a node, so that each start renews one object.
func registrationName(node, namespace string, owner metav1.OwnerReference) string {
	kind := strings.ToLower(owner.Kind)
	name := fmt.Sprintf("%s-%s-%s-%s", node, namespace, kind, owner.Name)
	if len(name) <= maxNameBytes {
		return name
	}
	sum := sha256.Sum256([]byte(node + namespace + kind + owner.Name))
	hash := hex.EncodeToString(sum[:nameHashBytes])
	// A dot before the dash would make the name invalid.
	return strings.TrimRight(name[:cutNameBytes-1-len(hash)], ".") + "-" + hash
}

// endpoint is resolved by the controller, which reads the pod's address.
func (c RegistrationConfig) endpoint() string {
	return fmt.Sprintf("pod://%s.%s:%d", c.Pod, c.Namespace, c.Port)
}

// object is the whole CSIAddonsNode as we want it. It serves as a merge patch
// too: what others wrote, as the controller's finalizer and status, stays.
func (c RegistrationConfig) object(owner metav1.OwnerReference, now time.Time) *unstructured.Unstructured {
	node := &unstructured.Unstructured{Object: map[string]any{
		"spec": map[string]any{
			"driver": map[string]any{
				"name":     c.Driver,
				"nodeID":   c.NodeID,
				"endpoint": c.endpoint(),
			},
		},
	}}
	node.SetGroupVersionKind(csiAddonsNodes.GroupVersion().WithKind("CSIAddonsNode"))
	node.SetNamespace(c.Namespace)
	node.SetName(registrationName(c.NodeID, c.Namespace, owner))
	node.SetAnnotations(map[string]string{
		createdByAnnotation: c.PodUID,
		updatedAtAnnotation: now.UTC().Format(time.RFC3339),
	})
	// Not the pod owns it but what owns the pod: it is to outlive one pod, and
	// to go with the last. Without blockOwnerDeletion, for which some clusters
	// (OwnerReferencesPermissionEnforcement) want a right on the owner.
	node.SetOwnerReferences([]metav1.OwnerReference{{
		APIVersion: owner.APIVersion, Kind: owner.Kind, Name: owner.Name, UID: owner.UID, Controller: owner.Controller,
	}})
	return node
}

// identityOf gives what no CSIAddonsNode may change.
func identityOf(node *unstructured.Unstructured) (identity [2]string) {
	for i, field := range []string{"name", "nodeID"} {
		identity[i], _, _ = unstructured.NestedString(node.Object, "spec", "driver", field)
	}
	return identity
}

// haveOneOwner reports whether the same DaemonSet owns both.
func haveOneOwner(a, b *unstructured.Unstructured) bool {
	one, other := metav1.GetControllerOf(a), metav1.GetControllerOf(b)
	return one != nil && other != nil && one.UID == other.UID
}
