package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csi-addons/node-healer/internal/intree"
	"github.com/csi-addons/node-healer/pkg/api/clustersettings"
	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/pkg/api/v1alpha1"
	"github.com/csi-addons/node-healer/pkg/api/volumehealth"
)

var everywhere = client.ListOptions{Limit: objectsPerPage}

// networkFences is the kind of CSI-Addons; a cluster without it has none.
var networkFences = schema.GroupVersionKind{Group: "csiaddons.openshift.io", Version: "v1alpha1", Kind: "NetworkFenceList"}

// readEvidence asks the node, and then the API for all that a decision goes by: the lists
// only where the node says that the volume is sick. The settings are those of before the node is
// asked. Last comes by what a person stops an eviction, as the node may take minutes to answer, and
// the Node, which is written to next. What cannot be asked for is an error, and no decision.
func (p *pass) readEvidence(ctx context.Context, node string, pods []corev1.Pod, begun []types.UID, settings map[string]string) (*evidence, error) {
	e := &evidence{
		volume: p.volume, settings: settings, pods: pods, begun: begun, namespace: &corev1.Namespace{}, class: &storagev1.StorageClass{}, driver: &storagev1.CSIDriver{},
		node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}},
	}
	if here := e.here(); len(here) > 0 {
		// With the path of a pod, so that what is wrong with its mount is found, too.
		e.asked = p.check(ctx, node, p.volume.request(p.cfg.KubeletRoot, here[0].UID))
	}
	for _, read := range []func(context.Context, *evidence) error{
		p.readOthers, p.readDaemons, p.readVolumes, p.readSick, p.readFences, p.readStops, p.readObjects,
		func(ctx context.Context, e *evidence) error {
			return p.cfg.Reader.Get(ctx, client.ObjectKey{Name: node}, e.node)
		},
	} {
		if !ptr.Deref(e.asked.abnormal, false) {
			break
		}
		if err := read(ctx, e); err != nil {
			return nil, err
		}
	}
	return e, ctx.Err()
}

// errJobDeleted ends the work on a job that is gone, or ends. What was begun is cleaned up as after a crash.
var errJobDeleted = errors.New("the job was deleted")

// readStops reads the job, the claim, its volume and the settings again: where the volume or the settings are
// others, it is time to look again.
func (p *pass) readStops(ctx context.Context, e *evidence) error {
	job := &v1alpha1.VolumeHealJob{}
	err := p.cfg.Reader.Get(ctx, client.ObjectKeyFromObject(p.job), job)
	if apierrors.IsNotFound(err) || err == nil && (job.UID != p.job.UID || job.DeletionTimestamp != nil) {
		return errJobDeleted
	}
	if err != nil {
		return err
	}
	v, err := p.readVolume(ctx, p.volume.claim.Namespace, p.volume.claim.Name)
	if err != nil {
		return err
	}
	e.volume = v
	settings, err := p.readSettings(ctx)
	if err == nil && (!maps.Equal(settings, e.settings) || v.claim.UID != p.volume.claim.UID || v.pv.UID != p.volume.pv.UID) {
		e.asked = hindered(ReasonEvictionWaits, passing, "the settings or the volume changed while it was asked")
	}
	return err
}

// readObjects reads what may forbid the eviction, and the driver. Class and driver may be missing.
func (r *Reconciler) readObjects(ctx context.Context, e *evidence) error {
	if err := r.cfg.Reader.Get(ctx, client.ObjectKey{Name: e.volume.claim.Namespace}, e.namespace); err != nil {
		return err
	}
	if class := e.volume.pv.Spec.StorageClassName; class != "" {
		if err := r.cfg.Reader.Get(ctx, client.ObjectKey{Name: class}, e.class); client.IgnoreNotFound(err) != nil {
			return err
		}
	}
	return client.IgnoreNotFound(r.cfg.Reader.Get(ctx, client.ObjectKey{Name: e.volume.pv.Spec.CSI.Driver}, e.driver))
}

// check asks a node about the volume, as one of the calls that it may get at a time.
func (p *pass) check(ctx context.Context, node string, req *healerpb.NodeHealerRequest) outcome {
	if !p.calls.take(node) {
		return hindered(ReasonVolumeBusy, passing, "other jobs ask the node")
	}
	defer p.calls.giveBack(node)
	return p.nodes.call(ctx, node, v1alpha1.ModeCheck, req, min(p.timeout(), evictCheckTimeout))
}

// readSettings returns the settings of the cluster; nil: there are none.
func (r *Reconciler) readSettings(ctx context.Context) (map[string]string, error) {
	kept := &corev1.ConfigMap{}
	err := r.cfg.Reader.Get(ctx, client.ObjectKey{Namespace: r.cfg.Gateways.Namespace, Name: r.cfg.ConfigMap}, kept)
	return kept.Data, client.IgnoreNotFound(err)
}

// maxKeptBytes bounds what is kept of the pods that use a claim: for some hundred of the usual
// size. Decoded, it may be twenty times as much, for each job that is at work.
const maxKeptBytes = 256 << 10

// podsOf returns the pods that use a claim and have not ended, with what a decision goes by.
func (r *Reconciler) podsOf(ctx context.Context, claim *corev1.PersistentVolumeClaim) (pods []corev1.Pod, err error) {
	size := 0
	err = r.eachPod(ctx, client.ListOptions{Namespace: claim.Namespace, FieldSelector: notEnded}, func(pod *corev1.Pod) {
		if uses(pod, claim) {
			stripPod(pod)
			if size += pod.Size(); size <= maxKeptBytes {
				pods = append(pods, *pod)
			}
		}
	})
	if err == nil && size > maxKeptBytes {
		return nil, refuse("the pods that use the claim are too many, or too large, to look at all of them")
	}
	return pods, err
}

// stripPod drops what no decision to evict goes by: who creates pods may fill them with megabytes.
func stripPod(pod *corev1.Pod) {
	maps.DeleteFunc(pod.Annotations, func(key, _ string) bool {
		_, asks := keepAnnotations[key]
		return !asks && !slices.Contains([]string{clustersettings.ModeAnnotation, clustersettings.EvictAnnotation, corev1.MirrorPodAnnotationKey}, key)
	})
	pod.ManagedFields = nil
	var volumes []corev1.Volume // with the first emptyDir of any number
	empty := false
	for _, v := range pod.Spec.Volumes {
		if intree.ClaimOf(pod, &v) != "" || v.EmptyDir != nil && !empty {
			volumes = append(volumes, v)
		}
		empty = empty || v.EmptyDir != nil
	}
	pod.Spec = corev1.PodSpec{
		NodeName: pod.Spec.NodeName, Tolerations: pod.Spec.Tolerations, TerminationGracePeriodSeconds: pod.Spec.TerminationGracePeriodSeconds, Volumes: volumes,
	}
	pod.Status = corev1.PodStatus{Conditions: pod.Status.Conditions}
}

// readOthers asks the node for the other volumes of the pods that are to be evicted, until
// one speaks against it. That of which the node says nothing may be answered for later.
func (p *pass) readOthers(ctx context.Context, e *evidence) error {
	for _, pod := range e.goes() {
		for _, v := range pod.Spec.Volumes {
			name := intree.ClaimOf(&pod, &v)
			if name == "" || name == e.volume.claim.Name || e.othersLost() != "" {
				continue
			}
			other, err := p.readVolume(ctx, pod.Namespace, name)
			switch end := (*ending)(nil); {
			case errors.As(err, &end): // no volume of a driver
			case err != nil:
				return err
			default:
				o := p.check(ctx, pod.Spec.NodeName, other.request(p.cfg.KubeletRoot, pod.UID))
				if o.abnormal == nil {
					e.asked = hindered(o.reason, o.class, "claim %s: %s", name, o.message)
					return nil
				}
				e.others = append(e.others, otherVolume{other, o})
			}
		}
	}
	return nil
}

// readDaemons finds the driver's DaemonSets by the directory that drivers keep for kubelet.
func (r *Reconciler) readDaemons(ctx context.Context, e *evidence) error {
	directory := path.Join(r.cfg.KubeletRoot, "plugins", e.volume.pv.Spec.CSI.Driver)
	names := map[client.ObjectKey]bool{}
	onNode := client.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", e.node.Name)}
	err := r.eachPod(ctx, onNode, func(pod *corev1.Pod) {
		owner := metav1.GetControllerOf(pod)
		if owner == nil || owner.Kind != "DaemonSet" || !slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
			return v.HostPath != nil && strings.HasPrefix(path.Clean(v.HostPath.Path)+"/", directory+"/")
		}) {
			return
		}
		names[client.ObjectKey{Namespace: pod.Namespace, Name: owner.Name}] = true
		if !ready(pod) {
			e.notReady = pod.Namespace + "/" + pod.Name
		}
	})
	if err != nil {
		return err
	}
	for name := range names {
		set := appsv1.DaemonSet{}
		if err := r.cfg.Reader.Get(ctx, name, &set); err != nil {
			return fmt.Errorf("read DaemonSet %s: %w", name, err)
		}
		e.daemons = append(e.daemons, set)
	}
	return nil
}

// readVolumes looks for other PersistentVolumes with the driver's handle.
func (r *Reconciler) readVolumes(ctx context.Context, e *evidence) error {
	mine := e.volume.pv
	return list(ctx, r, &corev1.PersistentVolumeList{}, everywhere, func(pv *corev1.PersistentVolume) error {
		if csi := intree.CSI(pv); csi != nil && pv.Name != mine.Name && csi.Driver == mine.Spec.CSI.Driver && csi.VolumeHandle == mine.Spec.CSI.VolumeHandle {
			e.twins = append(e.twins, pv.Name)
		}
		return nil
	})
}

// readSick looks for claims whose nodes say that they are sick. Anyone may say so who may write a claim, and
// must not keep the pods of others: of another namespace few count, and of each few volumes are read.
func (r *Reconciler) readSick(ctx context.Context, e *evidence) error {
	searched, counted := map[string]int{}, map[string]int{}
	return r.eachClaim(ctx, func(claim *metav1.PartialObjectMetadata) error {
		of := claim.Namespace
		others := of != e.volume.claim.Namespace
		switch {
		case e.sick > maxSick, others && (counted[of] == maxSickOfOthers || searched[of] == maxSearched), len(saidSick(claim.Annotations)) == 0:
			return nil
		case searched[of] == maxSearched: // of its own: each of the rest may be the driver's
			e.sick++
			return nil
		}
		searched[of]++
		v, err := r.readVolume(ctx, of, claim.Name)
		switch end := (*ending)(nil); {
		case errors.As(err, &end): // no volume of a driver
		case err != nil:
			return err
		case v.pv.Spec.CSI.Driver == e.volume.pv.Spec.CSI.Driver && !v.worksElsewhere():
			counted[of]++
			e.sick++
		}
		return nil
	})
}

// worksElsewhere reports whether a volume that one node has at a time was last said to be healthy. A node
// that said it to be sick, and has it no more, as after an eviction, does not take its word back.
func (v volume) worksElsewhere() bool {
	var last time.Time
	healthy := false
	for key, text := range v.claim.Annotations {
		var value volumehealth.Value
		if !strings.HasPrefix(key, volumehealth.Annotation) || json.Unmarshal([]byte(text), &value) != nil {
			continue
		}
		checked, err := time.Parse(time.RFC3339, value.LastChecked)
		switch {
		case err != nil, checked.After(time.Now()):
			return false // nobody knows which word is the last one
		case checked.After(last):
			last, healthy = checked, value.State == volumehealth.Healthy
		case checked.Equal(last):
			healthy = healthy && value.State == volumehealth.Healthy
		}
	}
	modes := v.pv.Spec.AccessModes
	return healthy && len(modes) > 0 && !slices.Contains(modes, corev1.ReadWriteMany) && !slices.Contains(modes, corev1.ReadOnlyMany)
}

// saidSick returns what nodes say of a claim whose volume is sick there. Who may write the
// claim may write that, too.
func saidSick(annotations map[string]string) (all []volumehealth.Value) {
	for key, text := range annotations {
		var value volumehealth.Value
		if !strings.HasPrefix(key, volumehealth.Annotation) || json.Unmarshal([]byte(text), &value) != nil || value.State != volumehealth.Unhealthy {
			continue
		}
		if checked, err := time.Parse(time.RFC3339, value.LastChecked); err != nil || time.Since(checked) < volumehealth.StaleAfter {
			all = append(all, value)
		}
	}
	return all
}

func (r *Reconciler) readFences(ctx context.Context, e *evidence) error {
	fences := &unstructured.UnstructuredList{}
	fences.SetGroupVersionKind(networkFences)
	err := list(ctx, r, fences, everywhere, func(f *unstructured.Unstructured) error {
		state, _, _ := unstructured.NestedString(f.Object, "spec", "fenceState")
		result, _, _ := unstructured.NestedString(f.Object, "status", "result")
		if state == "Unfenced" && result == "Succeeded" { // it fences nothing
			return nil
		}
		cidrs, _, err := unstructured.NestedStringSlice(f.Object, "spec", "cidrs")
		e.fences = append(e.fences, fence{f.GetName(), cidrs})
		return err
	})
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// staged asks the node whether it has the volume staged, at its staging path alone.
// Kubelet removes that path when the driver has unstaged the volume, and only then does a
// node that knew the volume there say that it does not.
func (p *pass) staged(ctx context.Context, node string) (staged, known bool, why string) {
	req := p.volume.request(p.cfg.KubeletRoot, "")
	req.VolumePath = ""
	o := p.check(ctx, node, req)
	gone := o.reason == ReasonVolumeNotFound
	return !gone, gone || o.abnormal != nil, o.message
}
