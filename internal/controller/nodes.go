package controller

import (
	"fmt"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/csi-addons/node-healer/pkg/api/v1alpha1"
)

// maxNodes is how many nodes the status of a job may have: MaxItems of its schema.
const maxNodes = 1000

// finished reports whether a node needs no other try.
func finished(n *v1alpha1.NodeStatus) bool { return n.Tries > 0 && n.NextTryTime == nil }

// nextDue returns the node that is to be tried next, and when: zero for one that was not tried
// yet. nil: there is none.
func nextDue(nodes []v1alpha1.NodeStatus) (next *v1alpha1.NodeStatus, due time.Time) {
	for i := range nodes {
		n := &nodes[i]
		at := ptr.Deref(n.NextTryTime, metav1.Time{}).Time
		if !finished(n) && (next == nil || at.Before(due)) {
			next, due = n, at
		}
	}
	return next, due
}

// follow brings the nodes of a job in line with the pods that use the volume now. waits
// is true while there is no such pod, and will be one. An *ending is returned where
// nothing is left to do, and where pods have moved twice.
//
// Nodes on which pods started to use the volume after the job began are its business
// only if others went: a job ends, also with a Deployment that grows.
func follow(s *v1alpha1.VolumeHealJobStatus, now usage) (waits bool, err error) {
	began := len(s.Nodes) > 0
	gone := func(n v1alpha1.NodeStatus) bool { return !finished(&n) && len(now.running[n.Node]) == 0 }
	if began && !slices.ContainsFunc(s.Nodes, gone) {
		return false, nil
	}
	var fresh []v1alpha1.NodeStatus
	for _, node := range slices.Sorted(maps.Keys(now.running)) {
		if !slices.ContainsFunc(s.Nodes, func(n v1alpha1.NodeStatus) bool { return n.Node == node }) {
			fresh = append(fresh, v1alpha1.NodeStatus{Node: node})
		}
	}
	switch {
	case !began && len(fresh) > maxNodes:
		return false, &ending{reason: ReasonTooManyNodes, message: fmt.Sprintf("pods on %d nodes use the claim, at most %d are supported", len(fresh), maxNodes)}
	case began && len(now.running) == 0 && now.others > 0:
		return true, nil
	case len(fresh) > 0 && s.Moved:
		return false, &ending{reason: ReasonPodMoved, message: fmt.Sprintf("the volume's pods moved again, for example to node %s: create another job", fresh[0].Node)}
	}
	s.Moved = s.Moved || began && len(fresh) > 0
	s.Nodes = append(slices.DeleteFunc(s.Nodes, gone), fresh...)
	if len(s.Nodes) > 0 {
		return false, nil
	}
	message := "no running pod uses the claim"
	if now.others > 0 {
		message += fmt.Sprintf("; %d that do are not running yet, or are ending", now.others)
	}
	return false, &ending{reason: ReasonNotInUse, message: message, succeeded: true}
}
