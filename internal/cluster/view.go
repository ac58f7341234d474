package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-addons/node-healer/pkg/facts/layout"
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

// volumeNameOf returns the name of a volume at one mount point.
func volumeNameOf(v healer.Volume, driver string, l layout.Path) volumeName {
	return volumeName{driver: driver, handle: v.ID, directory: l.PV}
}

// nameAt returns the name of a case's volume at one of its mount points. A
// container's mount is named after the mount point of its pod.
func nameAt(c healer.Case, p healer.MountPoint) volumeName {
	l := p.Layout
	for _, of := range c.MountPoints {
		if l.PV == "" && p.PodUID != "" && of.PodUID == p.PodUID {
			l.PV = of.Layout.PV
		}
	}
	return volumeNameOf(c.Volume, c.Driver, l)
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

// view is what the API says of one volume at one mount point.
type view struct {
	settings settings
	node     *corev1.Node
	volumes  []boundVolume
	// pods are the mount point's own, or all of this node that use the volume.
	pods []*corev1.Pod
	// unavailable is why the API did not answer now, so that the view has what it
	// last said; nil: the view is the API's word as of now.
	unavailable error
}

// recall returns what is known of a volume, for an inspection of a mount point of one
// pod, or of no pod. What is unknown is missing.
func (c *Cluster) recall(ctx context.Context, name volumeName, podUID string) view {
	q := &query{c: c}
	return q.view(ctx, name, podUID, podUID == "")
}

// ask returns what the API says now, for a step. With allPods, the view has all pods that
// use the volume, and not only the mount point's own. An error says what is unknown.
func (c *Cluster) ask(ctx context.Context, name volumeName, podUID string, allPods bool) (view, error) {
	q := &query{c: c, live: true}
	v := q.view(ctx, name, podUID, allPods || podUID == "")
	if v.unavailable = q.unavailable; ctx.Err() != nil {
		return v, ctx.Err()
	}
	if _, found := c.pod(podUID); q.unknown == nil && podUID != "" && !found && q.unavailable != nil {
		q.unknown = q.unavailable // the pod's annotation is unknown too
	}
	if q.unknown == nil && v.node == nil {
		q.unknown = fmt.Errorf("the cluster has no node of this name (--node-id): nodes %q not found", c.cfg.NodeName)
	}
	if q.unknown != nil {
		return v, unknown(q.unknown)
	}
	return v, nil
}

// unknown returns the error for what the API has not said.
func unknown(err error) error { return fmt.Errorf("what the cluster wants is not known: %w", err) }

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
	for _, b := range w.volumes {
		if ref := b.pv.Spec.ClaimRef; ref != nil {
			all = append(all, ref.Namespace)
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

// query reads what a view consists of.
type query struct {
	c *Cluster
	// live has each object read from the API, as before a step. Inspections use
	// informers and caches.
	live bool

	mu sync.Mutex
	// unavailable is why the API did not answer, unknown why something is not
	// known at all.
	unavailable, unknown error
}

// note keeps the first error of each kind.
func (q *query) note(unavailable, unknown error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.unavailable == nil {
		q.unavailable = unavailable
	}
	if q.unknown == nil {
		q.unknown = unknown
	}
}

// read returns one object; nil: it does not exist, or is unknown. While the API does not
// answer, what it last said counts.
func read[T apiObject](ctx context.Context, q *query, k kind[T], namespace, name string) (none T) {
	if name == "" {
		return none
	}
	r := q.c.reader
	if !q.live {
		before, until, known := last(r, k, namespace, name)
		i, watched := r.watched[k.resource]
		if watched {
			q.note(nil, i.listed())
		}
		if watched || known && time.Now().Before(until) {
			return before
		}
	}
	now, err := get(ctx, r, k, namespace, name)
	if err == nil {
		return now
	}
	before, _, known := last(r, k, namespace, name)
	switch {
	case known && !q.live:
		r.extend(keyOf(k.resource, namespace, name))
		return before
	case known && isUnavailable(err):
		q.note(err, nil)
		return before
	}
	q.note(nil, err)
	return none
}

func (q *query) view(ctx context.Context, name volumeName, podUID string, allPods bool) view {
	var v view
	var wg sync.WaitGroup
	wg.Go(func() { q.readSettings(ctx) })
	wg.Go(func() { v.node = read(ctx, q, nodeKind, "", q.c.cfg.NodeName) })
	q.note(nil, q.c.pods.listed())
	var own *corev1.Pod
	known, found := q.c.pod(podUID)
	if found {
		wg.Go(func() { own = q.pod(ctx, known) })
	}
	v.volumes = q.volumes(ctx, name, known)
	if allPods {
		v.pods = q.podsUsing(ctx, v.volumes, podUID)
	}
	wg.Wait()
	if own != nil {
		v.pods = append(v.pods, own)
	}
	v.settings = q.c.currentSettings()
	return v
}

// readSettings takes the settings over as the API has them now, for a step; else those
// that the informer has count.
func (q *query) readSettings(ctx context.Context) {
	if q.live {
		m, err := get(ctx, q.c.reader, configMapKind, q.c.cfg.Namespace, q.c.cfg.ConfigMap)
		switch {
		case err == nil:
			q.c.settings.update(m)
			return
		case isUnavailable(err):
			q.note(err, nil)
		default:
			q.note(nil, fmt.Errorf("cannot ask for the settings of the cluster: %w", err))
		}
	}
	q.note(nil, q.c.configMap.listed()) // it may say off
}

// pod returns the current state of a pod; nil: it is gone, or another one has
// its name.
func (q *query) pod(ctx context.Context, known *corev1.Pod) *corev1.Pod {
	if now := read(ctx, q, podKind, known.Namespace, known.Name); now != nil && now.UID == known.UID {
		return now
	}
	return nil
}

// podsUsing returns the pods on this node that list a volume, except one.
func (q *query) podsUsing(ctx context.Context, volumes []boundVolume, except string) []*corev1.Pod {
	var known []*corev1.Pod
	for _, b := range volumes {
		if ref := b.pv.Spec.ClaimRef; b.matches && ref != nil {
			known = append(known, indexed[*corev1.Pod](q.c.pods, byClaim, ref.Namespace+"/"+ref.Name)...)
		}
	}
	known = slices.DeleteFunc(known, func(p *corev1.Pod) bool { return string(p.UID) == except })
	now := make([]*corev1.Pod, len(known))
	inParallel(len(known), func(i int) { now[i] = q.pod(ctx, known[i]) })
	return slices.DeleteFunc(now, func(p *corev1.Pod) bool { return p == nil })
}

func inParallel(n int, do func(i int)) {
	var group errgroup.Group
	group.SetLimit(maxParallelReads)
	for i := range n {
		group.Go(func() error { do(i); return nil })
	}
	_ = group.Wait() // do reports its own errors
}

// volumes returns the PersistentVolumes that a name may mean: the one that the
// directory is named after, even if the caller names another volume, or else all
// that match. Several objects or drivers may share a handle.
func (q *query) volumes(ctx context.Context, name volumeName, pod *corev1.Pod) (all []boundVolume) {
	names := []string{name.directory}
	switch {
	case name.directory == "":
		names = q.search(ctx, name)
	case pod != nil && hasInline(pod, name.directory):
		return nil // the directory is named after the pod's inline volume
	}
	for _, n := range names {
		pv := read(ctx, q, volumeKind, "", n)
		if pv == nil || name.directory == "" && !name.matches(pv) {
			continue
		}
		b := boundVolume{pv: pv, matches: name.matches(pv)}
		var wg sync.WaitGroup
		wg.Go(func() { b.class = read(ctx, q, classKind, "", pv.Spec.StorageClassName) })
		if ref := pv.Spec.ClaimRef; ref != nil {
			if claim := read(ctx, q, claimKind, ref.Namespace, ref.Name); claim != nil && claim.UID == ref.UID {
				b.claim = claim
			}
		}
		wg.Wait()
		all = append(all, b)
	}
	return all
}

func hasInline(p *corev1.Pod, name string) bool {
	return slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.CSI != nil && v.Name == name })
}

// search returns the names of the volumes with a handle among those that the pods
// of this node use and those that were read before. Before a step, a handle that
// is not found there is looked for in the list of all volumes: the API cannot
// select by handle.
func (q *query) search(ctx context.Context, name volumeName) []string {
	recalled := &query{c: q.c} // the volume that a claim is bound to does not change
	claims := q.c.pods.GetIndexer().ListIndexFuncValues(byClaim)
	inParallel(len(claims), func(i int) {
		namespace, name, _ := strings.Cut(claims[i], "/")
		if claim := read(ctx, recalled, claimKind, namespace, name); claim != nil {
			read(ctx, recalled, volumeKind, "", claim.Spec.VolumeName)
		}
	})
	names := q.c.reader.volumesWith(name.handle)
	if !q.live {
		return names
	}
	q.note(nil, recalled.unknown)
	if len(names) == 0 && recalled.unknown == nil {
		found, err := q.c.volumesWithHandle(ctx, name)
		q.note(nil, err)
		for _, pv := range found {
			names = append(names, pv.Name)
		}
	}
	return names
}
