package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/csi-addons/node-healer/internal/intree"
	"github.com/csi-addons/node-healer/pkg/facts"
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
		now := w.wantedNow(p)
		if now == nil {
			return nil
		}
		if !errors.Is(err, errMayHaveEnded) { // one of which that is not known counts before one that is known to have
			err = now
		}
	}
	return err
}

// wantedNow is wantedBy with what runs on this node: kubelet unmounts a pod's volumes only after all of its
// processes were ended, and the API may show later that they were.
func (w *view) wantedNow(p *corev1.Pod) error {
	why := w.wantedBy(p)
	switch {
	case why == nil && w.evicted(p):
		return fmt.Errorf("%s has no process here any more, %w", w.name("pod", p), errMayHaveEnded)
	case errors.Is(why, errMayHaveEnded) && w.containerRuns(p):
		return nil
	}
	return why
}

// containerRuns reports whether a container of a pod is seen to run. What shares the node's process namespace
// outlives its container (a process that waits for a dead volume, for one), and shows nothing.
func (w *view) containerRuns(p *corev1.Pod) bool {
	own := func(c facts.Container) bool { return c.PodUID == string(p.UID) && !c.Pause }
	return runs(p) && !p.Spec.HostPID && slices.ContainsFunc(w.here, own)
}

// leftOver reports whether what runs in a pod may be left over from its containers: it has hostPID, and has ended or
// is terminating, or the API does not know it. kubelet unmounts the pod's volumes then.
func (w *view) leftOver(podUID string) bool {
	_, gone := w.c.gone.Get(podUID)
	known := w.c.pod(podUID)
	return gone || known != nil && known.Spec.HostPID && !slices.ContainsFunc(w.pods, func(p *corev1.Pod) bool {
		ends := p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
		return string(p.UID) == podUID && !ends
	})
}

// evicted reports whether a pod has run and has no process here any more. kubelet evicts and preempts pods, and
// ends them when the node shuts down, without a deletionTimestamp, and holds back what would say so until the
// containers have ended. What cannot be told does not speak against the API.
func (w *view) evicted(p *corev1.Pod) bool {
	// A virtual machine may run in a cgroup that is not the pod's.
	if !hasRun(p) || p.Spec.RuntimeClassName != nil {
		return false
	}
	// Where the node is itself a pod, its cgroups may name that one only.
	ofNode := func(c facts.Container) bool { return w.c.pod(c.PodUID) != nil }
	may := func(c facts.Container) bool { return c.PodUID == string(p.UID) || c.PodUID == "" }
	if !slices.ContainsFunc(w.here, ofNode) || slices.ContainsFunc(w.here, may) {
		return false
	}
	// CRI-O has no pause container for most pods: none of their processes lives between two runs of a container.
	pause := func(c facts.Container) bool { return c.Pause && !strings.HasPrefix(path.Base(c.Dir), "crio-") }
	return runs(p) || slices.ContainsFunc(w.here, pause)
}

// lookTimeout bounds a look at what runs here: a step waits for it.
const lookTimeout = 2 * time.Second

// inPods returns what runs in pods on this node; nil where that cannot be told.
func (c *Cluster) inPods(ctx context.Context) []facts.Container {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	here, err := c.cfg.Node.InPods(ctx)
	if err != nil {
		return nil
	}
	return here
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

var errMayHaveEnded = errors.New("so only a running container shows that it has not ended")

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
