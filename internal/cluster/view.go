package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"golang.org/x/sync/errgroup"
)

// maxParallelReads bounds the reads by name that all queries have under way, maxPodReads
// those of pods, each of which may take 40 MB.
const (
	maxParallelReads = 16
	maxPodReads      = 4
)

// VolumeName is what the node knows of a volume's name.
type VolumeName struct {
	// Driver may be empty: before the volume was inspected.
	Driver string
	Handle string
	// Directory is the name that kubelet gave to the mount point's directory: that
	// of the PersistentVolume, or of a pod's inline volume. It may be empty.
	Directory string
}

func (n VolumeName) matches(pv *corev1.PersistentVolume) bool {
	csi := pv.Spec.CSI
	return csi != nil && csi.VolumeHandle == n.Handle && (n.Driver == "" || csi.Driver == n.Driver)
}

// BoundVolume is a PersistentVolume with its claim and class.
type BoundVolume struct {
	PV *corev1.PersistentVolume
	// Claim is nil if the volume is not bound, or if another claim has that name.
	Claim *corev1.PersistentVolumeClaim
	Class *storagev1.StorageClass
	// Matches is false for a volume that only has the name of the directory.
	Matches bool
}

// View is what the API says of one volume at one mount point.
type View struct {
	// ConfigMap has the settings as Ask read them; nil: the informer's count.
	ConfigMap *corev1.ConfigMap
	Node      *corev1.Node
	Volumes   []BoundVolume
	// Pods are the mount point's own, or all of this node that use the volume.
	Pods []*corev1.Pod
	// Unavailable is why the API did not answer now, so that the view has what it
	// last said; nil: the view is the API's word as of now.
	Unavailable error
}

// Recall returns what is known of a volume, for a mount point of one pod, or of
// no pod. What is unknown is missing.
func (c *Cluster) Recall(ctx context.Context, name VolumeName, podUID string) View {
	q := &query{c: c}
	return q.view(ctx, name, podUID, podUID == "")
}

// Ask returns what the API says now. With allPods, the view has all pods that use
// the volume, and not only the mount point's own. An error says what is unknown.
func (c *Cluster) Ask(ctx context.Context, name VolumeName, podUID string, allPods bool) (View, error) {
	q := &query{c: c, live: true}
	v := q.view(ctx, name, podUID, allPods || podUID == "")
	if v.Unavailable = q.unavailable; ctx.Err() != nil {
		return v, ctx.Err()
	}
	if _, found := c.Pod(podUID); q.unknown == nil && podUID != "" && !found && q.unavailable != nil {
		q.unknown = q.unavailable // the pod's annotation is unknown too
	}
	if q.unknown == nil && v.Node == nil {
		q.unknown = fmt.Errorf("the cluster has no node of this name (--node-id): nodes %q not found", c.cfg.Node)
	}
	if q.unknown != nil {
		return v, Unknown(q.unknown)
	}
	return v, nil
}

// Unknown returns the error for what the API has not said.
func Unknown(err error) error { return fmt.Errorf("what the cluster wants is not known: %w", err) }

// GetPod reads a pod from the API; nil: it does not exist.
func (c *Cluster) GetPod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	return get(ctx, c.reader, podKind, namespace, name)
}

// GetCSIDriver reads a CSIDriver from the API; nil: it does not exist.
func (c *Cluster) GetCSIDriver(ctx context.Context, name string) (*storagev1.CSIDriver, error) {
	return get(ctx, c.reader, driverKind, "", name)
}

// Namespace returns a namespace, read from the API if live, or as it was read
// within the hour; nil: it does not exist. While the API does not answer, what it
// last said counts.
func (c *Cluster) Namespace(ctx context.Context, name string, live bool) (*corev1.Namespace, error) {
	q := &query{c: c, live: live}
	return read(ctx, q, namespaceKind, "", name), q.unknown
}

// query reads what a View consists of.
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

// read returns one object; nil: it does not exist, or is unknown.
func read[T apiObject](ctx context.Context, q *query, k kind[T], namespace, name string) (o T) {
	if name == "" {
		return o
	}
	var err error
	if q.live {
		o, err = get(ctx, q.c.reader, k, namespace, name)
		if IsUnavailable(err) {
			var known bool
			if o, known = last(q.c.reader, k, namespace, name); known {
				q.note(err, nil)
				return o
			}
		}
	} else {
		o, err = recall(ctx, q.c.reader, k, namespace, name)
	}
	q.note(nil, err)
	return o
}

func (q *query) view(ctx context.Context, name VolumeName, podUID string, allPods bool) View {
	var v View
	var wg sync.WaitGroup
	wg.Go(func() { v.ConfigMap = q.configMap(ctx) })
	wg.Go(func() { v.Node = read(ctx, q, nodeKind, "", q.c.cfg.Node) })
	q.note(nil, q.c.pods.listed())
	var own *corev1.Pod
	known, found := q.c.Pod(podUID)
	if found {
		wg.Go(func() { own = q.pod(ctx, known) })
	}
	v.Volumes = q.volumes(ctx, name, known)
	var others []*corev1.Pod
	if allPods {
		others = q.podsUsing(ctx, v.Volumes, podUID)
	}
	wg.Wait()
	if v.Pods = others; own != nil {
		v.Pods = append(v.Pods, own)
	}
	return v
}

// configMap reads the settings for a step; nil: the informer's count.
func (q *query) configMap(ctx context.Context) *corev1.ConfigMap {
	if q.live {
		m, err := get(ctx, q.c.reader, configMapKind, q.c.cfg.Namespace, q.c.cfg.ConfigMap)
		switch {
		case err == nil:
			return m
		case IsUnavailable(err):
			q.note(err, nil)
		default:
			q.note(nil, fmt.Errorf("cannot ask for the settings of the cluster: %w", err))
		}
	}
	q.note(nil, q.c.configMap.listed()) // it may say off
	return nil
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
func (q *query) podsUsing(ctx context.Context, volumes []BoundVolume, except string) []*corev1.Pod {
	var known []*corev1.Pod
	for _, b := range volumes {
		if ref := b.PV.Spec.ClaimRef; b.Matches && ref != nil {
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
func (q *query) volumes(ctx context.Context, name VolumeName, pod *corev1.Pod) (all []BoundVolume) {
	names := []string{name.Directory}
	switch {
	case name.Directory == "":
		names = q.search(ctx, name)
	case pod != nil && hasInline(pod, name.Directory):
		return nil // the directory is named after the pod's inline volume
	}
	for _, n := range names {
		pv := read(ctx, q, volumeKind, "", n)
		if pv == nil || name.Directory == "" && !name.matches(pv) {
			continue
		}
		b := BoundVolume{PV: pv, Matches: name.matches(pv)}
		var wg sync.WaitGroup
		wg.Go(func() { b.Class = read(ctx, q, classKind, "", pv.Spec.StorageClassName) })
		if ref := pv.Spec.ClaimRef; ref != nil {
			if claim := read(ctx, q, claimKind, ref.Namespace, ref.Name); claim != nil && claim.UID == ref.UID {
				b.Claim = claim
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
func (q *query) search(ctx context.Context, name VolumeName) []string {
	recalled := &query{c: q.c} // the volume that a claim is bound to does not change
	claims := q.c.pods.GetIndexer().ListIndexFuncValues(byClaim)
	inParallel(len(claims), func(i int) {
		namespace, name, _ := strings.Cut(claims[i], "/")
		if claim := read(ctx, recalled, claimKind, namespace, name); claim != nil {
			read(ctx, recalled, volumeKind, "", claim.Spec.VolumeName)
		}
	})
	names := q.c.reader.volumesWith(name.Handle)
	if !q.live {
		return names
	}
	q.note(nil, recalled.unknown)
	if len(names) == 0 && recalled.unknown == nil {
		found, err := q.c.VolumesWithHandle(ctx, name)
		q.note(nil, err)
		for _, pv := range found {
			names = append(names, pv.Name)
		}
	}
	return names
}
