package kube

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// claimOf gives the name of the claim behind a pod's volume; empty for a volume
// of another kind. A generic ephemeral volume's claim is named after pod and
// volume.
func claimOf(p *corev1.Pod, v *corev1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		return p.Name + "-" + v.Name
	}
	return ""
}

func ownedByDaemonSet(p *corev1.Pod) bool {
	owner := metav1.GetControllerOf(p)
	return owner != nil && owner.Kind == "DaemonSet"
}

// wants says why a pod does not want a volume on this node; nil: it does. The
// pod may be one of a feed or read anew.
func (c *Cluster) wants(p *corev1.Pod, v volumeName) error {
	name := "pod " + p.Namespace + "/" + p.Name
	switch {
	case p.Spec.NodeName != c.cfg.Node:
		return fmt.Errorf("%s is on node %q and not here", name, p.Spec.NodeName)
	case p.DeletionTimestamp != nil:
		return fmt.Errorf("%s is terminating", name)
	case p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed:
		return fmt.Errorf("%s has ended (%s)", name, p.Status.Phase)
	}
	for i := range p.Spec.Volumes {
		if c.names(p, &p.Spec.Volumes[i], v) {
			return nil
		}
	}
	return fmt.Errorf("%s does not list the volume", name)
}

// names is true when a pod's volume is v.
func (c *Cluster) names(p *corev1.Pod, listed *corev1.Volume, v volumeName) bool {
	if listed.CSI != nil {
		// Kubelet names the directory of an inline volume as the pod does.
		return listed.Name == v.directory && listed.CSI.Driver == v.driver
	}
	claim := claimOf(p, listed)
	if claim == "" {
		return false
	}
	for _, pv := range c.volumesOf(v) {
		if _, known := c.claimOf(pv); known && pv.claim == p.Namespace+"/"+claim {
			return true
		}
	}
	return false
}

// stillWanted asks the API itself for the pod, because a step follows. What the
// informer has counts for as long as the API may be silent.
func (c *Cluster) stillWanted(ctx context.Context, uid string, v volumeName) error {
	known, found := c.pod(uid)
	if !found {
		return fmt.Errorf("the API knows no pod with UID %s on this node", uid)
	}
	if err := c.wants(known, v); err != nil {
		return err
	}
	now := &corev1.Pod{}
	err := c.client.get(ctx, request{Resource: "pods", Namespace: known.Namespace, Name: known.Name}, now)
	switch {
	case err == nil && string(now.UID) != uid:
		return fmt.Errorf("pod %s/%s is another one by now", known.Namespace, known.Name)
	case err == nil:
		if r, says := word("Pod", now); says && r.forbids(modeHeal) != nil {
			return r.forbids(modeHeal)
		}
		return c.wants(now, v)
	case apierrors.IsNotFound(err):
		return fmt.Errorf("pod %s/%s is gone", known.Namespace, known.Name)
	case ctx.Err() != nil:
		return ctx.Err()
	case silence(err):
		return nil // current() bounds how long the informer's word counts then
	default:
		return fmt.Errorf("cannot ask whether the pod still wants the volume: %w", err)
	}
}

// silence is true for an error that says that the API cannot be reached, or
// cannot answer now. Any other is an answer.
func silence(err error) bool {
	return !hasAnswered(err) || apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) ||
		apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) ||
		apierrors.IsInternalError(err) // as when it does not reach its own store
}

// podsUsing gives the pods on this node that list a volume.
func (c *Cluster) podsUsing(v volumeName) []*corev1.Pod {
	var list []*corev1.Pod
	for _, pv := range c.volumesOf(v) {
		list = append(list, indexed[*corev1.Pod](c.pods, byClaim, pv.claim)...)
	}
	return list
}
