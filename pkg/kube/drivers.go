package kube

import (
	"fmt"
	"path"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// forgetDriver is longer than heals ever wait for a driver that is not here.
const forgetDriver = 2 * time.Hour

// maxDrivers bounds the drivers that are remembered: any DaemonSet may name some.
// The one that has been away the longest is forgotten, so that no heal waits for it.
const maxDrivers = 256

// drivers knows since when a CSI driver's own pod on this node is not ready: it
// may be about to mend its volumes itself, and a rollout is no time to heal.
type drivers struct {
	mu   sync.Mutex
	seen map[string]presence
}

// presence of a driver that was seen on this node; it stays when its pods are
// gone.
type presence struct {
	ready bool
	since time.Time
}

// readDrivers looks at all pods after one of them, or the settings, changed. It
// looks under the lock: of two that look at once, the one that saw less must not
// have the last word.
func (c *Cluster) readDrivers() {
	c.drivers.mu.Lock()
	defer c.drivers.mu.Unlock()
	daemonSets := c.rules().daemonSets
	now := map[string]bool{}
	for _, pod := range indexed[*corev1.Pod](c.pods, byDaemon, "") {
		for _, name := range driversOf(pod, daemonSets) {
			now[name] = now[name] || isReady(pod)
		}
	}
	c.drivers.note(now, time.Now())
}

// note is called with the lock held.
func (d *drivers) note(now map[string]bool, at time.Time) {
	if d.seen == nil {
		d.seen = map[string]presence{}
	}
	for name, p := range d.seen {
		if _, here := now[name]; here {
			continue
		}
		if now[name] = false; !p.ready && at.Sub(p.since) > forgetDriver {
			delete(now, name)
			delete(d.seen, name)
		}
	}
	for name, ready := range now {
		if before, known := d.seen[name]; !known || before.ready != ready {
			if !known {
				makeRoom(d.seen, maxDrivers, func(p presence) time.Time {
					if p.ready {
						return at
					}
					return p.since
				})
			}
			d.seen[name] = presence{ready: ready, since: at}
		}
	}
}

// driverAway looks at the pods as they are now: the last change may not have
// been handled yet.
func (c *Cluster) driverAway(driver string) error {
	c.readDrivers()
	return c.drivers.away(driver, c.cfg.DriverGrace)
}

// away says why heals wait for a driver; nil: they do not, or no longer.
func (d *drivers) away(driver string, grace time.Duration) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, known := d.seen[driver]
	if waits := time.Since(p.since); known && !p.ready && waits < grace {
		return fmt.Errorf("the pod of driver %s on this node has not been ready for %s, and heals wait up to %s for it (--driver-grace)",
			driver, waits.Round(time.Second), grace)
	}
	return nil
}

func isReady(p *corev1.Pod) bool {
	return p.DeletionTimestamp == nil && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// driversOf names the CSI drivers whose pod this is: by the settings, else by
// the directory plugins/<driver> of kubelet's that it mounts. Its arguments do not
// count: whoever may make pods may write anything into them.
func driversOf(p *corev1.Pod, daemonSets map[string]string) []string {
	var names []string
	owner := metav1.GetControllerOf(p)
	for driver, daemonSet := range daemonSets {
		if owner != nil && daemonSet == p.Namespace+"/"+owner.Name {
			names = append(names, driver)
		}
	}
	for _, v := range p.Spec.Volumes {
		if v.HostPath != nil && path.Base(path.Dir(path.Clean(v.HostPath.Path))) == "plugins" {
			names = append(names, path.Base(path.Clean(v.HostPath.Path)))
		}
	}
	// Whose pods are named by the settings, no directory name claims.
	return slices.DeleteFunc(names, func(driver string) bool {
		daemonSet, named := daemonSets[driver]
		return named && (owner == nil || daemonSet != p.Namespace+"/"+owner.Name)
	})
}

// drained says that the node is being emptied: cordoned, with pods that are
// going. Those of DaemonSets do not count; a drain leaves them.
func (c *Cluster) drained() error {
	node, known := one[*corev1.Node](c.node, c.cfg.Node)
	if !known {
		return nil
	}
	return c.emptied(node)
}

// emptied is drained, by a node that may have been read anew.
func (c *Cluster) emptied(node *corev1.Node) error {
	if !node.Spec.Unschedulable {
		return nil
	}
	for _, pod := range indexed[*corev1.Pod](c.pods, byGoing, "") {
		return fmt.Errorf("the node is being drained: it is cordoned, and pod %s/%s is terminating", pod.Namespace, pod.Name)
	}
	return nil
}
