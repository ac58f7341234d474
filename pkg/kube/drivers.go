package kube

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// forgetDriver is longer than heals ever wait for a driver that is not here.
const forgetDriver = 2 * time.Hour

// maxDrivers bounds the drivers that are remembered. The one that has been away the
// longest is forgotten, so that no heal waits for it.
const maxDrivers = 256

// enforceLabel on a namespace says which pods may be made in it (Pod Security
// Admission); who may make privileged ones may mend mounts.
const (
	enforceLabel      = "pod-security.kubernetes.io/enforce"
	enforcePrivileged = "privileged"
)

// drivers knows since when a CSI driver's own pod on this node is not ready: it
// may be about to mend its volumes itself, and a rollout is no time to heal.
type drivers struct {
	// reading holds one while somebody looks at the pods: of two that look at once,
	// the one that saw less must not have the last word.
	reading chan struct{}
	mu      sync.Mutex
	seen    map[string]presence
}

// presence of a driver that was seen on this node; it stays when its pods are
// gone.
type presence struct {
	ready bool
	since time.Time
}

// followDrivers looks at the drivers' pods after each change, until ctx ends.
func (c *Cluster) followDrivers(ctx context.Context) {
	c.finalized(ctx) // the settings say whose pods count
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.podsChanged:
			c.readDrivers(ctx, &viewing{c: c}, "")
		}
	}
}

// readDrivers looks at all pods of DaemonSets as they are now; v says how the
// namespaces of one driver's pods are learned, those of others come from memory.
func (c *Cluster) readDrivers(ctx context.Context, v *viewing, driver string) {
	select {
	case c.drivers.reading <- struct{}{}:
		defer func() { <-c.drivers.reading }()
	case <-ctx.Done():
		v.note(nil, ctx.Err())
		return
	}
	s := c.rules()
	memory := &viewing{c: c}
	known := map[string]bool{} // by namespace, of that driver
	counts := func(namespace, of string) bool {
		if of != driver {
			return memory.hasDrivers(ctx, s, namespace)
		}
		if _, asked := known[namespace]; !asked {
			known[namespace] = v.hasDrivers(ctx, s, namespace)
		}
		return known[namespace]
	}
	now := map[string]bool{}
	for _, pod := range indexed[*corev1.Pod](c.pods, byDaemon, "") {
		for _, name := range driversOf(pod, s.daemonSets, c.cfg.KubeletRoots, counts) {
			now[name] = now[name] || isReady(pod)
		}
	}
	c.drivers.note(now, time.Now())
}

// note takes which drivers have a ready pod here.
func (d *drivers) note(now map[string]bool, at time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
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

// driverAway says why heals wait for a driver. It looks at the pods as they are now:
// the last change may not have been handled yet.
func (c *Cluster) driverAway(ctx context.Context, driver string) error {
	v := &viewing{c: c, now: true}
	c.readDrivers(ctx, v, driver)
	if v.unknown != nil {
		return fmt.Errorf("what the cluster wants is not known: %w", v.unknown)
	}
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

// driversOf names the CSI drivers whose pod this is: by the settings, else by the
// directory plugins/<driver> of kubelet's that it mounts, if its namespace counts. Its
// arguments never do: whoever may make pods may write anything into them.
func driversOf(p *corev1.Pod, daemonSets map[string]string, roots []string, counts func(namespace, driver string) bool) (names []string) {
	set := p.Namespace + "/"
	if owner := metav1.GetControllerOf(p); owner != nil {
		set += owner.Name
	}
	for driver, daemonSet := range daemonSets {
		if daemonSet == set {
			names = append(names, driver)
		}
	}
	for _, v := range p.Spec.Volumes {
		if v.HostPath == nil {
			continue
		}
		plugins, driver := path.Split(path.Clean(v.HostPath.Path))
		root, isPlugins := strings.CutSuffix(plugins, "/plugins/")
		// Whose pods are named by the settings, no directory claims.
		if _, named := daemonSets[driver]; isPlugins && !named && slices.Contains(roots, root) && counts(p.Namespace, driver) {
			names = append(names, driver)
		}
	}
	return names
}

// hasDrivers is true for a namespace whose DaemonSets may be CSI drivers: one that the
// settings name; where they name none, kube-system and those labelled for privileged
// pods, which no tenant can make.
func (v *viewing) hasDrivers(ctx context.Context, s settings, namespace string) bool {
	switch {
	case s.driverNamespaces != nil:
		return slices.Contains(s.driverNamespaces, namespace)
	case namespace == metav1.NamespaceSystem:
		return true
	}
	n := learn(ctx, v, namespaceKind, "", namespace)
	return n != nil && n.Labels[enforceLabel] == enforcePrivileged
}

// emptied says that the node is being emptied: cordoned, with pods that are going.
// Those of DaemonSets do not count; a drain leaves them.
func (c *Cluster) emptied(node *corev1.Node) error {
	if node == nil || !node.Spec.Unschedulable {
		return nil
	}
	for _, pod := range indexed[*corev1.Pod](c.pods, byGoing, "") {
		return fmt.Errorf("the node is being drained: it is cordoned, and pod %s/%s is terminating", pod.Namespace, pod.Name)
	}
	return nil
}
