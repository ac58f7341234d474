package cluster

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
)

// note keeps the first error of each kind.
func (w *view) note(unavailable, unknown error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unavailable, w.unknown = cmp.Or(w.unavailable, unavailable), cmp.Or(w.unknown, unknown)
}

// read returns one object; nil: it does not exist, or is unknown. While the API does not
// answer, what it last said counts.
func read[T apiObject](ctx context.Context, w *view, k kind[T], namespace, name string) (none T) {
	if name == "" {
		return none
	}
	r := w.c.reader
	i, watched := r.watched[k.Resource]
	if !w.live {
		before, until, known := last(r, k, namespace, name)
		if watched {
			w.note(nil, i.listed())
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
	case known && !w.live:
		r.extend(keyOf(k.Resource, namespace, name))
		return before
	case known && isUnavailable(err):
		w.note(err, nil)
		if watched {
			w.note(nil, i.listed()) // what a step read may be of days ago: the settings may say off since
		}
		return before
	}
	w.note(nil, err)
	return none
}

// fill reads what a view consists of. With allPods, it has all pods of this node that use the
// volume, and not only the mount point's own.
func (w *view) fill(ctx context.Context, podUID string, allPods bool) *view {
	var wg sync.WaitGroup
	var configMap *corev1.ConfigMap
	wg.Go(func() { configMap = read(ctx, w, configMapKind, w.c.cfg.Namespace, w.c.cfg.ConfigMap) })
	wg.Go(func() { w.node = read(ctx, w, nodeKind, "", w.c.cfg.NodeName) })
	w.note(nil, w.c.pods.listed())
	var own []*corev1.Pod
	known := w.c.pod(podUID)
	if known != nil {
		wg.Go(func() { own = w.current(ctx, known) })
	}
	w.volumes = w.readVolumes(ctx, known)
	var others []*corev1.Pod
	for _, b := range w.volumes {
		if ref := b.pv.Spec.ClaimRef; allPods && b.matches && ref != nil {
			others = append(others, w.c.podsBy(byClaim, ref.Namespace+"/"+ref.Name)...)
		}
	}
	others = slices.DeleteFunc(others, func(p *corev1.Pod) bool { return string(p.UID) == podUID })
	w.pods = w.current(ctx, others...)
	wg.Wait()
	w.pods = append(w.pods, own...)
	said := w.c.settings.update(configMap, w.live && w.unavailable == nil)
	w.settings = w.c.currentSettings() // at the end: they may have changed while the rest was read
	w.settings.mode = min(w.settings.mode, said.mode)
	return w
}

// current returns what pods are now, without those that are gone, or whose names others have.
func (w *view) current(ctx context.Context, known ...*corev1.Pod) []*corev1.Pod {
	now := make([]*corev1.Pod, len(known))
	inParallel(len(known), func(i int) {
		if p := read(ctx, w, podKind, known[i].Namespace, known[i].Name); p != nil && p.UID == known[i].UID {
			now[i] = p
		}
	})
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

// readVolumes returns the PersistentVolumes that the volume's name may mean: the one that the
// directory is named after, even if the caller names another volume, or else all
// that match. Several objects or drivers may share a handle.
func (w *view) readVolumes(ctx context.Context, pod *corev1.Pod) (all []boundVolume) {
	name := w.volume
	names := []string{name.directory}
	if name.directory == "" {
		names = w.search(ctx)
	}
	// The pod may have an inline volume that the directory is named after, or that only has this name.
	inline := pod != nil && slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.CSI != nil && v.Name == name.directory })
	for _, n := range names {
		pv := read(ctx, w, volumeKind, "", n)
		if pv == nil || (name.directory == "" || inline) && !name.matches(pv) {
			continue
		}
		b := boundVolume{pv: pv, matches: name.matches(pv)}
		var wg sync.WaitGroup
		wg.Go(func() { b.class = read(ctx, w, classKind, "", pv.Spec.StorageClassName) })
		if ref := pv.Spec.ClaimRef; ref != nil {
			if claim := read(ctx, w, claimKind, ref.Namespace, ref.Name); claim != nil && claim.UID == ref.UID {
				b.claim = claim
			}
		}
		wg.Wait()
		all = append(all, b)
	}
	return all
}

// maxSearched bounds the claims of one namespace that a search reads: its pods may list any number that
// do not exist, each of which costs a request, again and again.
const maxSearched = 256

// search returns the names of the volumes with a handle among those that the pods
// of this node use and those that were read before. Before a step, a handle that
// is not found there is looked for in the list of all volumes: the API cannot
// select by handle. So it is, then, where a namespace has more claims than are read.
func (w *view) search(ctx context.Context) []string {
	recalled := &view{c: w.c} // the volume that a claim is bound to does not change
	all := w.c.pods.GetIndexer().ListIndexFuncValues(byClaim)
	slices.Sort(all) // so that each search reads the same ones, which are cached
	var claims []string
	ofNamespace := map[string]int{}
	for _, claim := range all {
		namespace, _, _ := strings.Cut(claim, "/")
		if ofNamespace[namespace]++; ofNamespace[namespace] <= maxSearched {
			claims = append(claims, claim)
		}
	}
	inParallel(len(claims), func(i int) {
		namespace, name, _ := strings.Cut(claims[i], "/")
		if claim := read(ctx, recalled, claimKind, namespace, name); claim != nil {
			read(ctx, recalled, volumeKind, "", claim.Spec.VolumeName)
		}
	})
	w.note(nil, recalled.unknown)
	names, cut := w.c.reader.volumesWith(w.volume.handle), len(claims) < len(all)
	switch {
	case len(names) > 0, recalled.unknown != nil:
	case w.live:
		found, err := matches(ctx, w.c, volumeKind, w.volume.matches)
		w.note(nil, err)
		for _, pv := range found {
			names = append(names, pv.Name)
		}
	case cut:
		w.note(nil, fmt.Errorf("the pods of a namespace here list more than %d claims, and the others were not read", maxSearched))
	}
	return names
}
