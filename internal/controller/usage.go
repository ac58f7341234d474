package controller

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csi-addons/node-healer/internal/intree"
)

// notEnded leaves out the pods that have ended, which may stay for ever.
var notEnded = fields.AndSelectors(
	fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)), fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)))

// usage is which pods use a claim now.
type usage struct {
	// running are the UIDs of those that run, by node.
	running map[string][]types.UID
	// others is how many will run, or end.
	others int
}

func (r *Reconciler) readUsage(ctx context.Context, claim *corev1.PersistentVolumeClaim) (usage, error) {
	u := usage{running: map[string][]types.UID{}}
	err := r.eachPod(ctx, client.ListOptions{Namespace: claim.Namespace, FieldSelector: notEnded}, func(pod *corev1.Pod) {
		switch {
		case !uses(pod, claim):
		case pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil && pod.Spec.NodeName != "":
			u.running[pod.Spec.NodeName] = append(u.running[pod.Spec.NodeName], pod.UID)
		default:
			u.others++
		}
	})
	for _, uids := range u.running {
		slices.Sort(uids)
	}
	return u, err
}

func (r *Reconciler) eachPod(ctx context.Context, page client.ListOptions, visit func(*corev1.Pod)) error {
	page.Limit = podsPerPage
	return list(ctx, r, &corev1.PodList{}, page, func(pod *corev1.Pod) error {
		visit(pod)
		return nil
	})
}

func (r *Reconciler) eachClaim(ctx context.Context, visit func(*metav1.PartialObjectMetadata) error) error {
	claims := &metav1.PartialObjectMetadataList{}
	claims.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaimList"))
	return list(ctx, r, claims, everywhere, visit)
}

// uses reports whether a pod has a claim among its volumes, by name or as its own
// (ephemeral).
func uses(pod *corev1.Pod, claim *corev1.PersistentVolumeClaim) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return intree.ClaimOf(pod, &v) == claim.Name && (v.Ephemeral == nil || metav1.IsControlledBy(claim, pod))
	})
}
