package cluster

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// forgetDriver is longer than heals ever wait for a driver without pods here.
	forgetDriver = 2 * time.Hour
	// enforcePrivileged is the value of enforceLabel on a namespace for
	// privileged pods: who may create those may mount anything anyway.
	enforcePrivileged = "privileged"
)

// drivers knows since when a CSI driver's own pod on this node is not ready: it may
// be about to repair its volumes itself, and heals must not interfere with a rollout.
type drivers struct {
	// mu serializes reads of the pods: of two at once, the one that saw less must not be
	// the last to record. It also guards the map. The API is not asked while it is held.
	mu   sync.Mutex
	seen map[string]driverPods
}

// driverPods is since when a driver has no ready pod here (zero: it has one), and since when it
// has one again (zero: it was not seen without).
type driverPods struct{ notReady, back time.Time }

// driverAway returns why heals wait for a driver; nil: they do not, or no longer; and since when it
// has a ready pod here again. It reads the pods of all DaemonSets itself: the last change may not
// have been handled yet. The namespaces of that driver's pods are read from the API, if live, those of other
// drivers recalled.
func (c *Cluster) driverAway(ctx context.Context, driver string, live bool) (back time.Time, err error) {
	s := c.currentSettings()
	type key struct{ namespace, driver string }
	known := map[key]bool{}
	var failed error
	for _, pod := range c.podsBy(byDaemonSet, "") {
		c.driversOf(pod, s.daemonSets, func(namespace, of string) bool {
			if _, asked := known[key{namespace, of}]; !asked {
				is, err := c.hasDrivers(ctx, s, namespace, live && of == driver)
				if known[key{namespace, of}] = is; of == driver {
					failed = cmp.Or(failed, err)
				}
			}
			return false
		})
	}
	c.drivers.mu.Lock()
	defer c.drivers.mu.Unlock()
	now := map[string]bool{}
	for _, pod := range c.podsBy(byDaemonSet, "") {
		// A pod that came meanwhile, to another namespace, is handled next (podChanged).
		for _, name := range c.driversOf(pod, s.daemonSets, func(namespace, of string) bool { return known[key{namespace, of}] }) {
			now[name] = now[name] || isReady(pod)
		}
	}
	c.drivers.record(now, time.Now())
	if failed != nil {
		return back, unknown(failed)
	}
	return c.drivers.seen[driver].back, c.drivers.waitsFor(driver, c.cfg.DriverGrace)
}

// record takes, by driver, whether it has a ready pod on this node. One whose pod is gone
// is not ready either.
func (d *drivers) record(now map[string]bool, at time.Time) {
	for name := range now {
		if _, known := d.seen[name]; !known {
			d.seen[name] = driverPods{}
		}
	}
	for name, pods := range d.seen {
		ready, here := now[name]
		switch {
		case ready && !pods.notReady.IsZero():
			pods = driverPods{back: at}
		case !ready && pods.notReady.IsZero():
			pods.notReady = at
		}
		if d.seen[name] = pods; !here && at.Sub(pods.notReady) > forgetDriver {
			delete(d.seen, name)
		}
	}
}

func (d *drivers) waitsFor(driver string, grace time.Duration) error {
	since := d.seen[driver].notReady
	if waits := time.Since(since); !since.IsZero() && waits < grace {
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

// driversOf returns the CSI drivers whose pod this is: by the settings, else by the
// directory plugins/<driver> of kubelet's that it mounts, if its namespace counts.
// Its arguments never count: who may create pods may write anything into them.
func (c *Cluster) driversOf(p *corev1.Pod, daemonSets map[string]string, counts func(namespace, driver string) bool) (names []string) {
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
		plugins, driver := path.Split(c.cfg.Node.RealPath(path.Clean(v.HostPath.Path)))
		// A directory does not count for a driver whose DaemonSet the settings name.
		if _, named := daemonSets[driver]; !named && plugins == c.cfg.Node.Kubelet().Root+"/plugins/" && counts(p.Namespace, driver) {
			names = append(names, driver)
		}
	}
	return names
}

// hasDrivers returns whether the DaemonSets of a namespace may be CSI drivers: of one
// that the settings name; where they name none, of kube-system and of those labelled
// for privileged pods, which no tenant can create.
func (c *Cluster) hasDrivers(ctx context.Context, s settings, namespace string, live bool) (bool, error) {
	switch {
	case s.driverNamespaces != nil:
		return slices.Contains(s.driverNamespaces, namespace), nil
	case namespace == metav1.NamespaceSystem:
		return true, nil
	}
	w := &view{c: c, live: live}
	n := read(ctx, w, namespaceKind, "", namespace)
	return n != nil && n.Labels[enforceLabel] == enforcePrivileged, w.unknown
}
