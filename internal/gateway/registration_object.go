package gateway

import (
	"crypto/x509"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-addons/node-healer/pkg/api/registration"
)

const (
	// The controller reconnects when an annotation changes, as lastUpdatedAt does with
	// every start. The names are the CSI-Addons sidecar's.
	createdByAnnotation = "sidecar.csiaddons.openshift.io/createdByPodUID"
	updatedAtAnnotation = "sidecar.csiaddons.openshift.io/lastUpdatedAt"
)

// endpoint returns a URL that the controller resolves to the pod's address.
func (c RegistrationConfig) endpoint() string {
	return fmt.Sprintf("pod://%s.%s:%d", c.Pod, c.Namespace, c.Port)
}

// object returns the CSIAddonsNode, which is also a merge patch: what others wrote,
// such as the controller's finalizer and status, stays. The certificate is what the
// gateway serves with.
func (c RegistrationConfig) object(name string, certificate *x509.Certificate, now time.Time) *unstructured.Unstructured {
	node := &unstructured.Unstructured{Object: map[string]any{
		"spec": map[string]any{
			"driver": map[string]any{"name": name, "nodeID": c.Node, "endpoint": c.endpoint()},
		},
	}}
	node.SetGroupVersionKind(registration.CSIAddonsNodes.GroupVersion().WithKind(registration.Kind))
	node.SetNamespace(c.Namespace)
	node.SetName(registration.ObjectName(c.Node, name))
	annotations := registration.Annotations(certificate)
	annotations[createdByAnnotation], annotations[updatedAtAnnotation] = c.PodUID, now.UTC().Format(time.RFC3339)
	node.SetAnnotations(annotations)
	// Deleted with the pod that serves it: a node that is removed leaves nothing.
	node.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: c.Pod, UID: types.UID(c.PodUID)}})
	return node
}
