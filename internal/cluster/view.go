package cluster

import (
	"context"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// volumeName is what the node knows of a volume's name.
type volumeName struct {
	// driver may be empty: before the volume was inspected.
	driver string
	handle string
	// directory is the name that kubelet gave to the mount point's directory: that
	// of the PersistentVolume, or of a pod's inline volume. It may be empty.
	directory string
}

// nameAt returns the name of a case's volume at one of its mount points. A
// container's mount is named after the mount point of its pod.
func nameAt(c healer.Case, p healer.MountPoint) volumeName {
	name := volumeName{driver: c.Driver, handle: c.Volume.ID, directory: p.Layout.PV}
	for _, of := range c.MountPoints {
		if name.directory == "" && p.PodUID != "" && of.PodUID == p.PodUID {
			name.directory = of.Layout.PV
		}
	}
	return name
}

func (n volumeName) matches(pv *corev1.PersistentVolume) bool {
	csi := pv.Spec.CSI
	return csi != nil && csi.VolumeHandle == n.handle && (n.driver == "" || csi.Driver == n.driver)
}

// boundVolume is a PersistentVolume with its claim and class.
type boundVolume struct {
	pv *corev1.PersistentVolume
	// claim is nil if the volume is not bound, or if another claim has that name.
	claim *corev1.PersistentVolumeClaim
	class *storagev1.StorageClass
	// matches is false for a volume that only has the name of the directory.
	matches bool
}

// view is what the API says of one volume at one mount point. What is unknown is missing.
type view struct {
	c      *Cluster
	volume volumeName
	// live has each object read from the API, as before a step. Inspections use informers
	// and caches.
	live bool

	settings settings
	node     *corev1.Node
	volumes  []boundVolume
	// pods are the mount point's own, or all of this node that use the volume.
	pods []*corev1.Pod

	// here is what ran in pods on this node before the API was asked; nil: nobody looked, or that cannot be told.
	here []facts.Container

	mu sync.Mutex
	// unavailable is why the API did not answer now, so that a live view has what it last
	// said; nil: that is the API's word as of now. unknown is why something is not known at
	// all.
	unavailable, unknown error
}

// recall returns what is known of a volume, for an inspection of a mount point of one
// pod, or of no pod.
func (c *Cluster) recall(ctx context.Context, name volumeName, podUID string) *view {
	return (&view{c: c, volume: name}).fill(ctx, podUID, podUID == "")
}

// ask returns what the API says now, for a step. With allPods, the view has all pods that
// use the volume, and not only the mount point's own. An error says what is unknown.
func (c *Cluster) ask(ctx context.Context, name volumeName, podUID string, allPods bool) (*view, error) {
	w := (&view{c: c, volume: name, live: true}).fill(ctx, podUID, allPods || podUID == "")
	if ctx.Err() != nil {
		return w, ctx.Err()
	}
	if w.unknown == nil && w.unavailable != nil && podUID != "" && c.pod(podUID) == nil {
		w.unknown = w.unavailable // the pod's annotation is unknown too
	}
	if w.unknown == nil && w.node == nil {
		w.unknown = fmt.Errorf("the cluster has no node of this name (--node-id): nodes %q not found", c.cfg.NodeName)
	}
	if w.unknown != nil {
		return w, unknown(w.unknown)
	}
	return w, nil
}

// readersOnly reports whether the volume is ReadOnlyMany and nothing else, by all PersistentVolumes
// with its handle: what is staged is one for all of them. One that cannot be read may be for writers.
func (w *view) readersOnly(ctx context.Context) bool {
	mayWrite := func(b boundVolume) bool {
		other := func(mode corev1.PersistentVolumeAccessMode) bool { return mode != corev1.ReadOnlyMany }
		return !b.matches || len(b.pv.Spec.AccessModes) == 0 || slices.ContainsFunc(b.pv.Spec.AccessModes, other)
	}
	if len(w.volumes) == 0 || slices.ContainsFunc(w.volumes, mayWrite) {
		return false
	}
	all := &view{c: w.c, volume: volumeName{handle: w.volume.handle}}
	return !slices.ContainsFunc(all.readVolumes(ctx, nil), mayWrite) && all.unknown == nil
}

// Answers asks the API for this node's object, and returns why that has no answer.
func (c *Cluster) Answers(ctx context.Context) error {
	node, err := get(ctx, c.reader, nodeKind, "", c.cfg.NodeName)
	if err == nil && node == nil {
		err = fmt.Errorf("it answers, and has no node %q (--node-id)", c.cfg.NodeName)
	}
	return err
}

// Policy says what the settings of the cluster allow at most.
func (c *Cluster) Policy() string {
	s := c.currentSettings()
	text := s.mode.String() + " at most, by " + c.configMapName()
	if s.err != nil {
		text += ", which cannot be read: " + s.err.Error()
	}
	return text
}

// unknown returns the error for what the API has not said.
func unknown(err error) error { return fmt.Errorf("what the cluster wants is not known: %w", err) }

// name returns how an answer names an object. One of another namespace than the volume's
// is not named: the answer becomes an event on the volume's claim, where its users read it.
func (w *view) name(kind string, o metav1.Object) string {
	switch o.GetNamespace() {
	case "":
		return kind + " " + o.GetName()
	case w.namespace():
		return kind + " " + o.GetNamespace() + "/" + o.GetName()
	}
	return "a " + kind + " of another namespace"
}

// namespace returns the namespace of the volume's claim, or of its pod if it has no
// claim; empty: objects of several namespaces share the volume. What is refused at one pod's target
// is said to all pods of the volume, so all PersistentVolumes that are known of it count.
func (w *view) namespace() string {
	var all []string
	for _, b := range w.volumes {
		if ref := b.pv.Spec.ClaimRef; ref != nil {
			all = append(all, ref.Namespace)
		}
	}
	for _, name := range w.c.reader.volumesWith(w.volume.handle) {
		if pv, _, _ := last(w.c.reader, volumeKind, "", name); pv != nil && pv.Spec.ClaimRef != nil && w.volume.matches(pv) {
			all = append(all, pv.Spec.ClaimRef.Namespace)
		}
	}
	for _, p := range w.pods {
		if len(w.volumes) == 0 {
			all = append(all, p.Namespace)
		}
	}
	slices.Sort(all)
	if all = slices.Compact(all); len(all) != 1 {
		return ""
	}
	return all[0]
}
