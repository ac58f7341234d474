// Package v1alpha1 has the kinds of node-healer.csi-addons.io/v1alpha1. A person or a
// program asks the controller through them to check or heal the volume of a claim.
// Callers that know the node and the paths use pkg/api/healerpb.
//
// +kubebuilder:object:generate=true
// +groupName=node-healer.csi-addons.io
package v1alpha1
