package cluster

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/semaphore"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
)

const (
	// forgetDriver is longer than heals ever wait for a driver without pods here.
	forgetDriver = 2 * time.Hour
	// maxDrivers bounds the drivers that are remembered although they are not ready. The
	// one that was seen here the longest time ago is forgotten first.
	maxDrivers = 256
	// enforcePrivileged is the value of EnforceLabel on a namespace for
	// privileged pods: who may create those may mount anything anyway.
	enforcePrivileged = "privileged"
)

// drivers knows since when a CSI driver's own pod on this node is not ready: it may
// be about to repair its volumes itself, and heals must not interfere with a rollout.
type drivers struct {
	// reading serializes reads of the pods: of two at once, the one that saw less
	// must not be the last to record. It also guards ready.
	reading *semaphore.Weighted
	// ready are the drivers that had a ready pod at the last read.
	ready map[string]bool
	// notReady has since when each of the others is not ready, also while it has no pod.
	notReady *cache.LRUExpireCache
}

func newDrivers() drivers {
	return drivers{reading: semaphore.NewWeighted(1), notReady: cache.NewLRUExpireCache(maxDrivers)}
}

// followDrivers records each change of the drivers' pods until ctx ends.
func (c *Cluster) followDrivers(ctx context.Context) {
	c.waitForSync(ctx) // the settings say whose pods count
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.driversChanged:
			_ = c.readDrivers(ctx, "") // fails only when ctx has ended
		}
	}
}

// driverAway returns why heals wait for a driver; nil: they do not, or no longer. It
// reads the pods itself: the last change may not have been handled yet.
func (c *Cluster) driverAway(ctx context.Context, driver string) error {
	if err := c.readDrivers(ctx, driver); err != nil {
		return unknown(err)
	}
	return c.drivers.waitsFor(driver, c.cfg.DriverGrace)
}

// readDrivers records the state of all pods of DaemonSets. The namespaces of one
// driver's pods are read from the API, and an error says that one is unknown; those
// of other drivers are recalled.
func (c *Cluster) readDrivers(ctx context.Context, driver string) error {
	if err := c.drivers.reading.Acquire(ctx, 1); err != nil {
		return err
	}
	defer c.drivers.reading.Release(1)
	s := c.settings.current()
	var failed error
	asked := map[string]bool{} // by namespace, for that driver
	counts := func(namespace, of string) bool {
		if of != driver {
			is, _ := c.hasDrivers(ctx, s, namespace, false)
			return is
		}
		if _, known := asked[namespace]; !known {
			is, err := c.hasDrivers(ctx, s, namespace, true)
			asked[namespace], failed = is, cmp.Or(failed, err)
		}
		return asked[namespace]
	}
	now := map[string]bool{}
	for _, pod := range indexed[*corev1.Pod](c.pods, byDaemonSet, "") {
		for _, name := range driversOf(pod, s.daemonSets, c.cfg.KubeletRoots, counts) {
			now[name] = now[name] || isReady(pod)
		}
	}
	c.drivers.record(now, time.Now())
	return failed
}

// record takes, by driver, whether it has a ready pod on this node.
func (d *drivers) record(now map[string]bool, at time.Time) {
	before := d.ready
	d.ready = map[string]bool{}
	for name := range before {
		if _, here := now[name]; !here {
			d.notReady.Add(name, at, forgetDriver)
		}
	}
	for name, ready := range now {
		if ready {
			d.ready[name] = true
			d.notReady.Remove(name)
			continue
		}
		since, known := d.notReady.Get(name)
		if !known {
			since = at
		}
		d.notReady.Add(name, since, forgetDriver)
	}
}

// waitsFor returns why heals wait for a driver; nil: they do not, or no longer.
func (d *drivers) waitsFor(driver string, grace time.Duration) error {
	since, is := d.notReady.Get(driver)
	if !is {
		return nil
	}
	if waits := time.Since(since.(time.Time)); waits < grace {
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
		// A directory does not count for a driver whose DaemonSet the settings name.
		if _, named := daemonSets[driver]; isPlugins && !named && slices.Contains(roots, root) && counts(p.Namespace, driver) {
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
	q := &query{c: c, live: live}
	n := read(ctx, q, namespaceKind, "", namespace)
	return n != nil && n.Labels[enforceLabel] == enforcePrivileged, q.unknown
}
