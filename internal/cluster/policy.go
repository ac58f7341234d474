package cluster

import (
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-addons/node-healer/pkg/facts/layout"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// PolicyConfig configures a Policy.
type PolicyConfig struct {
	Cluster *Cluster
	// KubeletRoots are kubelet's directory as configured and without links.
	KubeletRoots []string
	// DriverGrace is how long heals wait for a driver that is not ready.
	DriverGrace time.Duration
}

// Policy applies the cluster's rules to what the API says.
type Policy struct {
	cfg      PolicyConfig
	cluster  *Cluster
	settings *settingsStore
	drivers  drivers
	// driversChanged holds one value after a DaemonSet's pod or the settings changed.
	driversChanged chan struct{}
}

// NewPolicy returns a Policy for a cluster that does not run yet.
func NewPolicy(cfg PolicyConfig) (*Policy, error) {
	if cfg.Cluster == nil || len(cfg.KubeletRoots) == 0 || cfg.DriverGrace < 0 {
		return nil, errors.New("policy: a cluster and kubelet's root are required, and the driver's grace must not be negative")
	}
	p := &Policy{
		cfg: cfg, cluster: cfg.Cluster, settings: newSettingsStore(cfg.Cluster),
		drivers: newDrivers(), driversChanged: make(chan struct{}, 1),
	}
	return p, errors.Join(
		p.cluster.OnConfigMap(func(m *corev1.ConfigMap) {
			p.settings.update(m) // now: it may be deleted again before it is needed
			p.wake()
		}),
		p.cluster.OnDaemonSetPod(p.wake),
	)
}

// Run follows the drivers' pods until ctx ends.
func (p *Policy) Run(ctx context.Context) {
	p.cluster.WaitForSync(ctx) // the settings say whose pods count
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.driversChanged:
			_ = p.readDrivers(ctx, "") // fails only when ctx has ended
		}
	}
}

func (p *Policy) wake() {
	select {
	case p.driversChanged <- struct{}{}:
	default:
	}
}

// view is what the API says of one volume at one mount point, with the settings.
type view struct {
	View
	settings settings
}

// name returns how an answer names an object. One of another namespace than the volume's
// is not named: the answer becomes an event on the volume's claim, where its users read it.
func (w view) name(kind string, o metav1.Object) string {
	switch o.GetNamespace() {
	case "":
		return kind + " " + o.GetName()
	case w.namespace():
		return kind + " " + o.GetNamespace() + "/" + o.GetName()
	}
	return "a " + kind + " of another namespace"
}

// namespace returns the namespace of the volume's claim, or of its pod if it has no
// claim; empty: objects of several namespaces share the volume.
func (w view) namespace() string {
	var all []string
	for _, b := range w.Volumes {
		if ref := b.PV.Spec.ClaimRef; ref != nil {
			all = append(all, ref.Namespace)
		}
	}
	for _, p := range w.Pods {
		if len(w.Volumes) == 0 {
			all = append(all, p.Namespace)
		}
	}
	slices.Sort(all)
	if all = slices.Compact(all); len(all) != 1 {
		return ""
	}
	return all[0]
}

// recall returns what is known, for an inspection.
func (p *Policy) recall(ctx context.Context, name VolumeName, podUID string) view {
	v := p.cluster.Recall(ctx, name, podUID)
	return view{v, p.settings.of(v)}
}

// ask returns what the API says now, for a step.
func (p *Policy) ask(ctx context.Context, name VolumeName, podUID string, allPods bool) (view, error) {
	v, err := p.cluster.Ask(ctx, name, podUID, allPods)
	return view{v, p.settings.of(v)}, err
}

// volumeNameOf returns the name of a volume at one mount point.
func volumeNameOf(v healer.Volume, driver string, l layout.Path) VolumeName {
	return VolumeName{Driver: driver, Handle: v.ID, Directory: l.PV}
}

// nameAt returns the name of a case's volume at one of its mount points. A
// container's mount is named after the mount point of its pod.
func nameAt(c healer.Case, p healer.MountPoint) VolumeName {
	l := p.Layout
	for _, of := range c.MountPoints {
		if l.PV == "" && p.PodUID != "" && of.PodUID == p.PodUID {
			l.PV = of.Layout.PV
		}
	}
	return volumeNameOf(c.Volume, c.Driver, l)
}
