package controller

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csi-addons/node-healer/internal/intree"
	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/pkg/facts/layout"
)

// volume is a CSI volume and the claim that it is bound to.
type volume struct {
	claim *corev1.PersistentVolumeClaim
	pv    *corev1.PersistentVolume
}

// ending is an error that ends a job.
type ending struct {
	reason, message string
	// succeeded is true where nothing was to be done.
	succeeded bool
}

func (e *ending) Error() string { return e.message }

// readVolume returns the volume of a claim. It believes the claim's volumeName only if
// the PersistentVolume names the claim in turn: who creates a claim writes the first,
// and only the binder the second. With an error, the claim is there if it was found.
func (r *Reconciler) readVolume(ctx context.Context, namespace, name string) (volume, error) {
	claim := &corev1.PersistentVolumeClaim{}
	err := r.cfg.Reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, claim)
	if apierrors.IsNotFound(err) {
		return volume{}, &ending{reason: ReasonClaimNotFound, message: fmt.Sprintf("there is no claim %s in namespace %s", name, namespace)}
	}
	if err != nil {
		return volume{}, err
	}
	v := volume{claim: claim, pv: &corev1.PersistentVolume{}}
	if claim.Spec.VolumeName == "" {
		return v, &ending{reason: ReasonNotInUse, message: "the claim is not bound, so no pod uses it", succeeded: true}
	}
	err = r.cfg.Reader.Get(ctx, client.ObjectKey{Name: claim.Spec.VolumeName}, v.pv)
	if err != nil && !apierrors.IsNotFound(err) {
		return v, err
	}
	ref := v.pv.Spec.ClaimRef
	v.pv.Spec.CSI = intree.CSI(v.pv)
	switch {
	case err != nil || ref == nil || ref.Namespace != namespace || ref.Name != name || ref.UID != claim.UID:
		return v, &ending{reason: ReasonClaimNotBound, message: fmt.Sprintf("the PersistentVolume %s is not bound to the claim", claim.Spec.VolumeName)}
	case v.pv.Spec.CSI == nil:
		return v, &ending{reason: ReasonNotCSI, message: fmt.Sprintf("the PersistentVolume %s is not of a CSI driver", v.pv.Name)}
	}
	return v, nil
}

// request names the volume as kubelet published it for a pod.
func (v volume) request(kubeletRoot string, pod types.UID) *healerpb.NodeHealerRequest {
	from := v.pv.Spec.CSI
	kubelet := layout.Kubelet{Root: kubeletRoot}
	if v.block() {
		return &healerpb.NodeHealerRequest{
			VolumeId: from.VolumeHandle, VolumePath: kubelet.BlockTarget(string(pod), v.pv.Name), StagingTargetPath: kubelet.BlockStaging(v.pv.Name),
		}
	}
	return &healerpb.NodeHealerRequest{
		VolumeId: from.VolumeHandle, VolumePath: kubelet.Target(string(pod), v.pv.Name), StagingTargetPath: kubelet.Staging(from.Driver, from.VolumeHandle),
	}
}

func (v volume) block() bool {
	return v.pv.Spec.VolumeMode != nil && *v.pv.Spec.VolumeMode == corev1.PersistentVolumeBlock
}
