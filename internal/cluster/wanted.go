package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/csi-addons/node-healer/internal/intree"
)

// wanted returns why no pod wants the volume at a mount point; nil: one does.
// podUID is empty for a mount point that belongs to no pod. What the API said
// before an outage does not count.
func (w *view) wanted(podUID string) error {
	if w.unavailable != nil {
		return w.unavailable
	}
	err := errors.New("no pod on this node lists the volume")
	if podUID != "" {
		err = fmt.Errorf("the API knows no pod with UID %s on this node that has not ended", podUID)
	}
	for _, p := range w.pods {
		if podUID != "" && string(p.UID) != podUID {
			continue
		}
		if err = w.wantedBy(p); err == nil {
			return nil
		}
	}
	return err
}

// wantedBy returns why a pod does not want the volume on this node; nil: it does.
func (w *view) wantedBy(p *corev1.Pod) error {
	what := w.name("pod", p)
	switch {
	case p.Spec.NodeName != w.c.cfg.NodeName:
		return fmt.Errorf("%s is on node %q and not here", what, p.Spec.NodeName)
	case p.DeletionTimestamp != nil:
		return fmt.Errorf("%s is terminating", what)
	case p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed:
		return fmt.Errorf("%s has ended (%s)", what, p.Status.Phase)
	case !slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return w.lists(p, &v) }):
		return fmt.Errorf("%s does not list the volume", what)
	// One that can end by itself and has begun: kubelet unmounts the volumes of one that has ended
	// before the API may show it. RestartPolicyAlways is the API's default.
	case p.Spec.ActiveDeadlineSeconds != nil, // that ends also one that has not begun
		cmp.Or(p.Spec.RestartPolicy, corev1.RestartPolicyAlways) != corev1.RestartPolicyAlways && hasRun(p):
		return fmt.Errorf("%s may end by itself (activeDeadlineSeconds, or its containers have run and a restartPolicy is not Always), %w", what, errMayHaveEnded)
	}
	return nil
}

var errMayHaveEnded = errors.New("so only a running one shows that it has not ended")

// lists returns whether a volume of a pod is the view's.
func (w *view) lists(p *corev1.Pod, v *corev1.Volume) bool {
	if v.CSI != nil {
		// kubelet names the directory of an inline volume as the pod does.
		return v.Name == w.volume.directory && v.CSI.Driver == w.volume.driver
	}
	claim := intree.ClaimOf(p, v)
	return claim != "" && slices.ContainsFunc(w.volumes, func(b boundVolume) bool {
		return b.matches && b.claim != nil && b.claim.Namespace == p.Namespace && b.claim.Name == claim
	})
}
