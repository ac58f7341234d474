package cluster

import (
	"context"
	"fmt"
	"path"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

// enforcePrivileged is the value of enforceLabel on a namespace for privileged pods: who may create
// those may mount anything anyway.
const enforcePrivileged = "privileged"

// maxGone bounds the pods of DaemonSets that are remembered after their deletion.
const maxGone = 64

// driverAway returns why heals wait for a driver, none of whose own pods on this node is ready: it
// may be about to repair its volumes itself, and heals must not interfere with a rollout; nil: they
// do not, or no longer; and since when it has a ready pod.
func (c *Cluster) driverAway(ctx context.Context, driver string) (back time.Time, err error) {
	s := c.currentSettings()
	pods := c.podsBy(byDaemonSet, "")
	for _, uid := range c.gone.Keys() {
		if p, kept := c.gone.Get(uid); kept {
			pods = append(pods, p.(*corev1.Pod))
		}
	}
	var isReady bool
	var away time.Time
	for _, pod := range pods {
		is, err := c.isOfDriver(ctx, s, pod, driver)
		if err != nil {
			return time.Time{}, unknown(err)
		}
		ready, since := readiness(pod)
		switch {
		case !is:
		case ready:
			isReady, back = true, latest(back, since)
		default:
			away = latest(away, since)
		}
	}
	if waits := time.Since(away); !isReady && !away.IsZero() && waits < c.cfg.DriverGrace {
		err = fmt.Errorf("the pod of driver %s on this node has not been ready for %s, and heals wait up to %s for it (--driver-grace)",
			driver, waits.Round(time.Second), c.cfg.DriverGrace)
	}
	return back, err
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// podAdded reads the namespace of a pod that may be a driver's, for when the API does not answer.
//
//nolint:contextcheck // an informer gives its handlers none
func (c *Cluster) podAdded(p *corev1.Pod) {
	if ownedByDaemonSet(p) && len(c.plugins(p)) > 0 {
		read(context.Background(), &view{c: c}, namespaceKind, "", p.Namespace)
	}
}

// podDeleted keeps a DaemonSet's pod for as long as heals wait for a driver: the next pod comes a
// moment later. A pod whose deletion the watch missed comes as a cache.DeletedFinalStateUnknown.
func (c *Cluster) podDeleted(o any) {
	if missed, is := o.(cache.DeletedFinalStateUnknown); is {
		o = missed.Obj
	}
	if p, is := o.(*corev1.Pod); is && ownedByDaemonSet(p) {
		p = p.DeepCopy()
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = ptr.To(metav1.Now()), nil
		c.gone.Add(p.UID, p, c.cfg.DriverGrace)
	}
}

// readiness returns whether a pod is ready, and since when it is, or is not.
func readiness(p *corev1.Pod) (ready bool, since time.Time) {
	if p.DeletionTimestamp != nil {
		return false, p.DeletionTimestamp.Add(-time.Second * time.Duration(ptr.Deref(p.DeletionGracePeriodSeconds, 0)))
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue, c.LastTransitionTime.Time
		}
	}
	return false, p.CreationTimestamp.Time
}

// isOfDriver returns whether a DaemonSet's pod is a CSI driver's: by the settings, else by the
// directory plugins/<driver> of kubelet's that it mounts, if its namespace counts.
// Its arguments never count: who may create pods may write anything into them.
func (c *Cluster) isOfDriver(ctx context.Context, s settings, p *corev1.Pod, driver string) (bool, error) {
	if set, named := s.daemonSets[driver]; named {
		return set == p.Namespace+"/"+metav1.GetControllerOfNoCopy(p).Name, nil
	}
	if !slices.Contains(c.plugins(p), driver) {
		return false, nil
	}
	return c.hasDrivers(ctx, s, p.Namespace)
}

// plugins returns the names of the directories in kubelet's plugins that a pod mounts.
func (c *Cluster) plugins(p *corev1.Pod) (names []string) {
	for _, v := range p.Spec.Volumes {
		if v.HostPath == nil {
			continue
		}
		if dir, name := path.Split(c.cfg.Node.RealPath(path.Clean(v.HostPath.Path))); dir == c.cfg.Node.Kubelet().Root+"/plugins/" {
			names = append(names, name)
		}
	}
	return names
}

// hasDrivers returns whether the DaemonSets of a namespace may be CSI drivers: of one
// that the settings name; where they name none, of kube-system and of those labelled
// for privileged pods, which no tenant can create.
func (c *Cluster) hasDrivers(ctx context.Context, s settings, namespace string) (bool, error) {
	switch {
	case s.driverNamespaces != nil:
		return slices.Contains(s.driverNamespaces, namespace), nil
	case namespace == metav1.NamespaceSystem:
		return true, nil
	}
	w := &view{c: c, live: true}
	n := read(ctx, w, namespaceKind, "", namespace)
	return n != nil && n.Labels[enforceLabel] == enforcePrivileged, w.unknown
}
