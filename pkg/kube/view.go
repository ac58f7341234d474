package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/host"
)

// volumeName is what is known of a volume's name on the node.
type volumeName struct {
	// driver may be empty: before the volume was looked at.
	driver string
	handle string
	// directory is what kubelet named after the PersistentVolume, or after a
	// pod's inline volume; empty for a mount point that tells none.
	directory string
}

func nameOf(v healer.Volume, driver string, l host.Layout) volumeName {
	return volumeName{driver: driver, handle: v.ID, directory: l.PV}
}

// nameAt is nameOf for a mount point of a case. What a container has of a pod's volume is
// named as the mount point where it is published for that pod.
func nameAt(c healer.Case, p healer.MountPoint) volumeName {
	l := p.Layout
	for _, of := range c.MountPoints {
		if l.PV == "" && p.PodUID != "" && of.PodUID == p.PodUID {
			l.PV = of.Layout.PV
		}
	}
	return nameOf(c.Volume, c.Driver, l)
}

func (n volumeName) fits(pv *corev1.PersistentVolume) bool {
	csi := pv.Spec.CSI
	return csi != nil && csi.VolumeHandle == n.handle && (n.driver == "" || csi.Driver == n.driver)
}

// boundVolume is a PersistentVolume with what belongs to it.
type boundVolume struct {
	pv *corev1.PersistentVolume
	// claim is what it is bound to; nil if there is none, or another one of that
	// name by now.
	claim *corev1.PersistentVolumeClaim
	class *storagev1.StorageClass
	// fits is false for one that only lends its name to the directory.
	fits bool
}

// view is all that decides on one volume at one place.
type view struct {
	settings settings
	node     *corev1.Node
	volumes  []boundVolume
	// pods are the one whose mount point it is, or all of this node that use the volume.
	pods []*corev1.Pod
	// silence is why the API did not answer now, so that what it last said counts
	// for some of it; nil: it is the API's word as of now.
	silence error
}

// viewing learns what a view is made of.
type viewing struct {
	c *Cluster
	// now is true for a step: each question goes to the API. For a look memory is
	// good enough.
	now bool

	mu      sync.Mutex
	silence error
	// unknown is why something is not known at all.
	unknown error
}

func (v *viewing) note(silence, unknown error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.silence == nil {
		v.silence = silence
	}
	if v.unknown == nil {
		v.unknown = unknown
	}
}

// learn gives one object; nil if there is none, or nobody knows.
func learn[T apiObject](ctx context.Context, v *viewing, k kind[T], namespace, name string) (o T) {
	if name == "" {
		return o
	}
	var err error
	if v.now {
		o, err = ask(ctx, v.c.reader, k, namespace, name)
		if silence(err) {
			var known bool
			if o, known = last(v.c.reader, k, namespace, name); known {
				v.note(err, nil)
				return o
			}
		}
	} else {
		o, err = recall(ctx, v.c.reader, k, namespace, name)
	}
	v.note(nil, err)
	return o
}

// look gives what is remembered of a volume, for a mount point of one pod, or of none.
// What is not known is missing: nothing is changed by a look.
func (c *Cluster) look(ctx context.Context, name volumeName, podUID string) view {
	v := &viewing{c: c}
	return v.view(ctx, name, podUID, podUID == "")
}

// ask gives what the API says now. With all, it is asked of all pods that use the
// volume, and not only of the one whose mount point it is. An error says what is not known,
// not even from earlier.
func (c *Cluster) ask(ctx context.Context, name volumeName, podUID string, all bool) (view, error) {
	v := &viewing{c: c, now: true}
	now := v.view(ctx, name, podUID, all || podUID == "")
	if now.silence = v.silence; ctx.Err() != nil {
		return now, ctx.Err()
	}
	if _, found := c.pod(podUID); v.unknown == nil && podUID != "" && !found && v.silence != nil {
		v.unknown = v.silence // nor is it known what the pod's annotation says
	}
	if v.unknown == nil && now.node == nil {
		v.unknown = fmt.Errorf("the cluster has no node of this name (--node-id): nodes %q not found", c.cfg.Node)
	}
	if v.unknown != nil {
		return now, fmt.Errorf("what the cluster wants is not known: %w", v.unknown)
	}
	return now, nil
}

func (v *viewing) view(ctx context.Context, name volumeName, podUID string, all bool) view {
	var w view
	var wg sync.WaitGroup
	wg.Go(func() { w.settings = v.settings(ctx) })
	wg.Go(func() { w.node = learn(ctx, v, nodeKind, "", v.c.cfg.Node) })
	v.note(nil, v.c.pods.listed())
	var own *corev1.Pod
	known, found := v.c.pod(podUID)
	if found {
		wg.Go(func() { own = v.pod(ctx, known) })
	}
	w.volumes = v.volumes(ctx, name, known)
	var others []*corev1.Pod
	if all {
		others = v.podsUsing(ctx, w.volumes, podUID)
	}
	wg.Wait()
	if w.pods = others; own != nil {
		w.pods = append(w.pods, own)
	}
	return w
}

// pod gives what became of a pod; nil when it is gone, or another one by now.
func (v *viewing) pod(ctx context.Context, known *corev1.Pod) *corev1.Pod {
	if now := learn(ctx, v, podKind, known.Namespace, known.Name); now != nil && now.UID == known.UID {
		return now
	}
	return nil
}

// askAtOnce bounds the questions of one view that are under way.
const askAtOnce = 16

func sideBySide(n int, do func(i int)) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, askAtOnce)
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			do(i)
		})
	}
	wg.Wait()
}

// podsUsing gives the pods on this node that list a volume, but for one.
func (v *viewing) podsUsing(ctx context.Context, volumes []boundVolume, except string) []*corev1.Pod {
	var known []*corev1.Pod
	for _, b := range volumes {
		if ref := b.pv.Spec.ClaimRef; b.fits && ref != nil {
			known = append(known, indexed[*corev1.Pod](v.c.pods, byClaim, ref.Namespace+"/"+ref.Name)...)
		}
	}
	known = slices.DeleteFunc(known, func(p *corev1.Pod) bool { return string(p.UID) == except })
	now := make([]*corev1.Pod, len(known))
	sideBySide(len(known), func(i int) { now[i] = v.pod(ctx, known[i]) })
	return slices.DeleteFunc(now, func(p *corev1.Pod) bool { return p == nil })
}

// volumes gives the PersistentVolumes that a name may mean: one, but for a handle
// that several objects or drivers share; and the one that the directory is named
// after, also where a caller takes it for another volume.
func (v *viewing) volumes(ctx context.Context, name volumeName, pod *corev1.Pod) (all []boundVolume) {
	names := []string{name.directory}
	switch {
	case name.directory == "":
		names = v.search(ctx, name)
	case pod != nil && hasInline(pod, name.directory):
		return nil // it is the name of the pod's own volume
	}
	for _, n := range names {
		pv := learn(ctx, v, volumeKind, "", n)
		if pv == nil || name.directory == "" && !name.fits(pv) {
			continue
		}
		b := boundVolume{pv: pv, fits: name.fits(pv)}
		var wg sync.WaitGroup
		wg.Go(func() { b.class = learn(ctx, v, classKind, "", pv.Spec.StorageClassName) })
		if ref := pv.Spec.ClaimRef; ref != nil {
			if claim := learn(ctx, v, claimKind, ref.Namespace, ref.Name); claim != nil && claim.UID == ref.UID {
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

// search finds the volumes with a handle among those that the pods of this node use,
// and those that were read before. The API cannot look for a handle: before a step,
// one that is not found so is looked for in the list of all volumes.
func (v *viewing) search(ctx context.Context, name volumeName) []string {
	memory := &viewing{c: v.c} // which volume a claim is bound to does not change
	claims := v.c.pods.GetIndexer().ListIndexFuncValues(byClaim)
	sideBySide(len(claims), func(i int) {
		namespace, name, _ := strings.Cut(claims[i], "/")
		if claim := learn(ctx, memory, claimKind, namespace, name); claim != nil {
			learn(ctx, memory, volumeKind, "", claim.Spec.VolumeName)
		}
	})
	names := v.c.reader.named(name.handle)
	if !v.now {
		return names
	}
	v.note(nil, memory.unknown)
	if len(names) == 0 && memory.unknown == nil {
		found, err := v.c.volumesLike(ctx, name)
		v.note(nil, err)
		for _, pv := range found {
			names = append(names, pv.Name)
		}
	}
	return names
}

// wants says why a pod does not want a volume on this node; nil: it does.
func (w view) wants(p *corev1.Pod, name volumeName, node string) error {
	what := "pod " + p.Namespace + "/" + p.Name
	switch {
	case p.Spec.NodeName != node:
		return fmt.Errorf("%s is on node %q and not here", what, p.Spec.NodeName)
	case p.DeletionTimestamp != nil:
		return fmt.Errorf("%s is terminating", what)
	case p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed:
		return fmt.Errorf("%s has ended (%s)", what, p.Status.Phase)
	case !slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return w.names(p, &v, name) }):
		return fmt.Errorf("%s does not list the volume", what)
	case mayHaveEnded(p):
		return fmt.Errorf("%s has restartPolicy %s and its containers have run, so only a running one shows that it has not ended", what, p.Spec.RestartPolicy)
	}
	return nil
}

// mayHaveEnded is true for a pod that can end by itself and has begun: kubelet
// unmounts the volumes of one that has ended before the API may show it.
func mayHaveEnded(p *corev1.Pod) bool {
	always := p.Spec.RestartPolicy == corev1.RestartPolicyAlways || p.Spec.RestartPolicy == "" // the API's default
	return !always && hasRun(p)
}

// names is true when a pod's volume is the one of that name.
func (w view) names(p *corev1.Pod, listed *corev1.Volume, name volumeName) bool {
	if listed.CSI != nil {
		// Kubelet names the directory of an inline volume as the pod does.
		return listed.Name == name.directory && listed.CSI.Driver == name.driver
	}
	claim := claimOf(p, listed)
	return claim != "" && slices.ContainsFunc(w.volumes, func(b boundVolume) bool {
		return b.fits && b.claim != nil && b.claim.Namespace == p.Namespace && b.claim.Name == claim
	})
}

// wanted says why no pod wants the volume at a mount point; podUID is empty for a mount point
// that is no pod's. The API has to have answered.
func (w view) wanted(name volumeName, podUID, node string) error {
	if w.silence != nil {
		return w.silence
	}
	err := errors.New("no pod on this node lists the volume")
	if podUID != "" {
		err = fmt.Errorf("the API knows no pod with UID %s on this node", podUID)
	}
	for _, p := range w.pods {
		if podUID != "" && string(p.UID) != podUID {
			continue
		}
		if err = w.wants(p, name, node); err == nil {
			return nil
		}
	}
	return err
}
