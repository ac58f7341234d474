package controller

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/csi-addons/node-healer/pkg/api/v1alpha1"
)

// maxNodes is how many nodes the status of a job may have: MaxItems of its schema.
const maxNodes = 1000

// finished reports whether a node needs no other try.
func finished(n *v1alpha1.NodeStatus) bool { return n.Tries > 0 && n.NextTryTime == nil }

// nextDue returns a node that is to be tried now; nil: there is none.
func nextDue(nodes []v1alpha1.NodeStatus, now time.Time) *v1alpha1.NodeStatus {
	for i := range nodes {
		n := &nodes[i]
		if !finished(n) && (n.NextTryTime == nil || !n.NextTryTime.After(now)) {
			return n
		}
	}
	return nil
}

// follow brings the nodes of a job in line with the pods that use the volume now. waits
// is true while there is no such pod, and will be one. An *ending is returned where
// nothing is left to do, and where pods have moved twice.
//
// Nodes on which pods started to use the volume after the job began are its business
// only if others went: a job ends, also with a Deployment that grows.
func follow(s *v1alpha1.VolumeHealJobStatus, now usage) (waits bool, err error) {
	if len(s.Nodes) == 0 {
		if len(now.running) > maxNodes {
			return false, &ending{reason: ReasonTooManyNodes, message: fmt.Sprintf("pods on %d nodes use the claim, at most %d are supported", len(now.running), maxNodes)}
		}
		s.Nodes = added(nil, slices.Sorted(maps.Keys(now.running)))
		return false, unused(s, now)
	}
	gone := func(n v1alpha1.NodeStatus) bool { return !finished(&n) && len(now.running[n.Node]) == 0 }
	if !slices.ContainsFunc(s.Nodes, gone) {
		return false, nil
	}
	var fresh []string
	for _, node := range slices.Sorted(maps.Keys(now.running)) {
		if !slices.ContainsFunc(s.Nodes, func(n v1alpha1.NodeStatus) bool { return n.Node == node }) {
			fresh = append(fresh, node)
		}
	}
	switch {
	case len(now.running) == 0 && now.others > 0:
		return true, nil
	case len(fresh) > 0 && s.Moved:
		return false, &ending{reason: ReasonPodMoved, message: fmt.Sprintf("the volume's pods moved again, to %v: create another job", fresh)}
	}
	s.Moved = s.Moved || len(fresh) > 0
	s.Nodes = added(slices.DeleteFunc(s.Nodes, gone), fresh)
	return false, unused(s, now)
}

func added(nodes []v1alpha1.NodeStatus, names []string) []v1alpha1.NodeStatus {
	for _, name := range names {
		nodes = append(nodes, v1alpha1.NodeStatus{Node: name})
	}
	return nodes
}

// unused ends a job without nodes.
func unused(s *v1alpha1.VolumeHealJobStatus, now usage) error {
	if len(s.Nodes) > 0 {
		return nil
	}
	message := "no running pod uses the claim"
	if now.others > 0 {
		message += fmt.Sprintf("; %d that do are not running yet, or are ending", now.others)
	}
	return &ending{reason: ReasonNotInUse, message: message, succeeded: true}
}
