// Package volumehealth is the annotation by which the nodes tell of a volume's health, on
// its claim. Format: github.com/csi-addons/kubernetes-csi-addons,
// sidecar/internal/volume-condition and
// internal/controller/csiaddons/volumehealth_cleanup_controller.go.
package volumehealth

import "time"

// Annotation is on a claim once for every node that uses it, with the node's UID at its
// end. The CSI-Addons controller removes those whose LastChecked is old.
const Annotation = "csiaddons.openshift.io/volumehealth."

// StaleAfter is how old LastChecked is of a node that has the volume no more: more than twice as long
// as node-healer takes to write it anew.
const StaleAfter = 3 * time.Hour

// The states of a volume.
const (
	Healthy   = "healthy"
	Unhealthy = "unhealthy"
)

// Value is the annotation's, as JSON.
type Value struct {
	// State is Healthy or Unhealthy.
	State string `json:"state"`
	// LastChecked and Since are times (RFC 3339): of the last report, and from when on
	// the state has been this one.
	LastChecked string `json:"lastChecked"`
	Since       string `json:"since"`
	// Node is the node's name.
	Node string `json:"node"`
	// Evictable are the reasons among its conditions for which pods may be evicted
	// (docs/eviction.md). No one else's annotation has it.
	Evictable []string `json:"evictable,omitempty"`
}
