package kube

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Subjects gives the claim and the pods of a volume, as ReporterConfig.Find
// wants them: not yet known is false, a volume of which the cluster has no
// object included.
func (c *Cluster) Subjects(driver, volumeID string, podUIDs []string) (Subjects, bool) {
	var s Subjects
	for _, uid := range podUIDs {
		if pod, known := c.pod(uid); known {
			s.Pods = append(s.Pods, reference("v1", "Pod", pod))
		}
	}
	name := volumeName{driver: driver, handle: volumeID}
	// A claim that no pod here uses is another node's to tell of.
	if pvs := c.volumesOf(name); len(pvs) == 1 && len(c.podsUsing(name)) > 0 {
		if claim, known := c.claimOf(pvs[0]); known {
			of := reference("v1", "PersistentVolumeClaim", claim.GetObjectMeta())
			s.Claim = &of
		}
	}
	return s, s.Claim != nil || len(s.Pods) > 0
}

// NodeUID gives the UID of this node's object, as soon as it is known.
func (c *Cluster) NodeUID() (types.UID, bool) {
	node, known := one[*corev1.Node](c.node, c.cfg.Node)
	if !known {
		return "", false
	}
	return node.UID, true
}

func reference(version, kind string, o metav1.Object) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: version, Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID()}
}
