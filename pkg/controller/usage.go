package controller

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// podsPerPage bounds one answer of the API.
const podsPerPage = 500

// usage is which pods use a claim now.
type usage struct {
	// running are the UIDs of those that run, by node.
	running map[string][]types.UID
	// others is how many will run, or end.
	others int
}

func (r *Reconciler) readUsage(ctx context.Context, claim *corev1.PersistentVolumeClaim) (usage, error) {
	u := usage{running: map[string][]types.UID{}}
	page := client.ListOptions{Namespace: claim.Namespace, Limit: podsPerPage}
	for {
		pods := &corev1.PodList{}
		if err := r.cfg.Reader.List(ctx, pods, &page); err != nil {
			return u, err
		}
		for i := range pods.Items {
			u.add(&pods.Items[i], claim)
		}
		if page.Continue = pods.Continue; page.Continue == "" {
			break
		}
	}
	for _, uids := range u.running {
		slices.Sort(uids)
	}
	return u, nil
}

func (u *usage) add(pod *corev1.Pod, claim *corev1.PersistentVolumeClaim) {
	ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	switch {
	case ended || !uses(pod, claim):
	case pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil && pod.Spec.NodeName != "":
		u.running[pod.Spec.NodeName] = append(u.running[pod.Spec.NodeName], pod.UID)
	default:
		u.others++
	}
}

// uses reports whether a pod has a claim among its volumes, by name or as its own
// (ephemeral).
func uses(pod *corev1.Pod, claim *corev1.PersistentVolumeClaim) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		switch {
		case v.PersistentVolumeClaim != nil:
			return v.PersistentVolumeClaim.ClaimName == claim.Name
		case v.Ephemeral != nil:
			return pod.Name+"-"+v.Name == claim.Name && metav1.IsControlledBy(claim, pod)
		}
		return false
	})
}
