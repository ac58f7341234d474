package cluster

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// drainTime is how long after its grace period a terminating pod still counts. One that
// a finalizer or a stuck kubelet keeps for ever would keep its volume from being healed.
const drainTime = 10 * time.Minute

// draining returns why the volume is about to leave this node: the node is out of
// service, or it is cordoned and a pod that uses the volume terminates. Other pods do
// not count: anybody may have one that terminates for ever.
func (w *view) draining() error {
	if w.node == nil {
		return nil
	}
	if slices.ContainsFunc(w.node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService }) {
		return fmt.Errorf("the node has the taint %s: other nodes may have its volumes", corev1.TaintNodeOutOfService)
	}
	for _, p := range w.pods {
		if at := p.DeletionTimestamp; w.node.Spec.Unschedulable && at != nil && time.Since(at.Time) < drainTime {
			return fmt.Errorf("the node is being drained: it is cordoned, and %s, which uses the volume, is terminating", w.name("pod", p))
		}
	}
	return nil
}
