package cluster

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// subjects are the objects that a volume is reported on.
type subjects struct {
	// claim is nil when the volume has none, as a pod's inline volume.
	claim *corev1.ObjectReference
	// pods are those on this node that use the volume.
	pods []corev1.ObjectReference
}

// subjects returns the claim and the pods of a volume, and false when neither
// is known.
func (c *Cluster) subjects(ctx context.Context, driver, volumeID string, podUIDs []string) (subjects, bool) {
	var s subjects
	for _, uid := range podUIDs {
		if pod := c.pod(uid); pod != nil {
			s.pods = append(s.pods, reference("Pod", pod))
		}
	}
	w := c.recall(ctx, volumeName{driver: driver, handle: volumeID}, "")
	// A claim that no pod here uses is reported on by another node.
	if len(w.volumes) == 1 && len(w.pods) > 0 && w.volumes[0].claim != nil {
		claim := reference("PersistentVolumeClaim", w.volumes[0].claim)
		s.claim = &claim
	}
	return s, s.claim != nil || len(s.pods) > 0
}

// Names returns what people call the claim and the pod of a path: NAMESPACE/NAME, empty where
// the API has not said. The directory alone proves no PersistentVolume: a pod chooses the name
// of its inline volume.
func (c *Cluster) Names(ctx context.Context, p facts.VolumePath) (claim, pod string) {
	if o := c.pod(p.PodUID); o != nil {
		pod = o.Namespace + "/" + o.Name
	}
	pv := read(ctx, &view{c: c}, volumeKind, "", p.PV)
	if pv != nil && pv.Spec.ClaimRef != nil && (volumeName{driver: p.DriverName, handle: p.VolumeHandle}).matches(pv) {
		claim = pv.Spec.ClaimRef.Namespace + "/" + pv.Spec.ClaimRef.Name
	}
	return claim, pod
}

func reference(kind string, o metav1.Object) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: "v1", Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID()}
}

// podHere returns whether a pod is on this node, and true while that is unknown.
func (c *Cluster) podHere(uid string) bool {
	return c.pod(uid) != nil || c.pods.listed() != nil
}

// nodeUID returns the UID of this node's object; empty while that is unknown.
func (c *Cluster) nodeUID() types.UID {
	if node := c.ownNode(); node != nil {
		return node.UID
	}
	return ""
}
