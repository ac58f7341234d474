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
)

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
	case pod != nil && slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.CSI != nil && v.Name == name.directory }):
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
