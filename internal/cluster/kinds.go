package cluster

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/csi-addons/node-healer/internal/intree"
	"github.com/csi-addons/node-healer/pkg/api/clustersettings"
)

// apiObject is an object of the API. A nil one stands for one that does not exist.
type apiObject interface {
	runtime.Object
	metav1.Object
}

type kind[T apiObject] struct {
	schema.GroupResource
	empty func() T
	// stripSpec drops what is not needed of spec and status.
	stripSpec func(T)
}

func kindOf[O any, T interface {
	*O
	apiObject
}](resource schema.GroupResource, stripSpec func(T),
) kind[T] {
	return kind[T]{resource, func() T { return new(O) }, stripSpec}
}

var (
	podKind       = kindOf(corev1.Resource("pods"), stripPod)
	nodeKind      = kindOf(corev1.Resource("nodes"), func(n *corev1.Node) { n.Spec.PodCIDRs, n.Status = nil, corev1.NodeStatus{} })
	configMapKind = kindOf(corev1.Resource("configmaps"), func(m *corev1.ConfigMap) { m.BinaryData = nil })
	namespaceKind = kindOf(corev1.Resource("namespaces"), func(*corev1.Namespace) {})
	volumeKind    = kindOf(corev1.Resource("persistentvolumes"), stripVolume)
	claimKind     = kindOf(corev1.Resource("persistentvolumeclaims"), func(c *corev1.PersistentVolumeClaim) {
		c.Spec = corev1.PersistentVolumeClaimSpec{VolumeName: nameOrNone(c.Spec.VolumeName)}
		c.Status = corev1.PersistentVolumeClaimStatus{}
	})
	classKind  = kindOf(storagev1.Resource("storageclasses"), func(c *storagev1.StorageClass) { *c = storagev1.StorageClass{ObjectMeta: c.ObjectMeta} })
	driverKind = kindOf(storagev1.Resource("csidrivers"), func(*storagev1.CSIDriver) {})
	secretKind = kindOf(corev1.Resource("secrets"), func(*corev1.Secret) {})

	attachmentKind = kindOf(storagev1.Resource("volumeattachments"), func(*storagev1.VolumeAttachment) {})
)

// maxModeBytes bounds what is kept of clustersettings.ModeAnnotation, the one annotation that is
// kept of every object: no mode is longer.
const maxModeBytes = 64

// daemonSet is the one kind of owner that is kept.
const daemonSet = "DaemonSet"

// maxNameBytes is the limit of an object's name. Where an object names another one, the
// API has none: it takes a claim's name of 1 MB in a pod.
const maxNameBytes = 253

// nameOrNone returns a name that an object can have, else none.
func nameOrNone(name string) string {
	if len(name) > maxNameBytes {
		return ""
	}
	return name
}

// enforceLabel is the one label that is kept but of a Node. On a namespace it says which pods may
// be created there (Pod Security Admission).
const enforceLabel = "pod-security.kubernetes.io/enforce"

// strip drops what is not needed of an object, so that little memory is used.
func (k kind[T]) strip(o T) {
	k.stripSpec(o) // first: that of a migrated PersistentVolume needs a label
	o.SetManagedFields(nil)
	o.SetFinalizers(nil)
	owner := metav1.GetControllerOf(o)
	o.SetOwnerReferences(nil)
	if owner != nil && owner.Kind == daemonSet {
		o.SetOwnerReferences([]metav1.OwnerReference{{Kind: daemonSet, Name: nameOrNone(owner.Name), Controller: owner.Controller}})
	}
	if _, isNode := any(o).(*corev1.Node); !isNode { // the settings select nodes by label
		enforce, labelled := o.GetLabels()[enforceLabel]
		o.SetLabels(nil)
		if labelled {
			o.SetLabels(map[string]string{enforceLabel: enforce})
		}
	}
	mode, set := o.GetAnnotations()[clustersettings.ModeAnnotation]
	o.SetAnnotations(nil)
	if set {
		// Cloned, so that the rest of a long value is freed.
		o.SetAnnotations(map[string]string{clustersettings.ModeAnnotation: strings.Clone(mode[:min(len(mode), maxModeBytes)])})
	}
}

func stripVolume(v *corev1.PersistentVolume) {
	spec := corev1.PersistentVolumeSpec{AccessModes: v.Spec.AccessModes, ClaimRef: v.Spec.ClaimRef, StorageClassName: v.Spec.StorageClassName}
	if csi := intree.CSI(v); csi != nil {
		spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: csi.Driver, VolumeHandle: csi.VolumeHandle}
	}
	v.Spec, v.Status = spec, corev1.PersistentVolumeStatus{}
}

// Limits of what is kept of one pod, which its creator may fill with megabytes:
// as many volumes as drivers attach to one node, and longer paths than a socket has
// (unix(7)). Volumes beyond them count as not wanted: only a running container that
// has one mounted gets it healed. Such a pod counts as no driver's.
const (
	maxPodVolumes = 128
	maxPluginPath = 256
)

// stripPod keeps what tells which volumes a pod has, whether it may have ended,
// and of a DaemonSet's pod whether it is a CSI driver's.
func stripPod(p *corev1.Pod) {
	daemon := ownedByDaemonSet(p)
	volumes := make([]corev1.Volume, 0, min(len(p.Spec.Volumes), maxPodVolumes))
	for _, v := range p.Spec.Volumes {
		switch {
		case len(volumes) == maxPodVolumes:
		case v.PersistentVolumeClaim != nil && len(v.PersistentVolumeClaim.ClaimName) <= maxNameBytes,
			daemon && v.HostPath != nil && len(v.HostPath.Path) <= maxPluginPath:
			volumes = append(volumes, v)
		case v.Ephemeral != nil:
			v.Ephemeral = &corev1.EphemeralVolumeSource{} // its claim's name follows from the pod's name
			volumes = append(volumes, v)
		case v.CSI != nil:
			v.CSI = &corev1.CSIVolumeSource{Driver: v.CSI.Driver}
			volumes = append(volumes, v)
		}
	}
	restart := p.Spec.RestartPolicy
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		// A container's own policy counts before the pod's (Kubernetes 1.35): the pod may end by itself.
		if c.RestartPolicy != nil && *c.RestartPolicy != corev1.ContainerRestartPolicyAlways {
			restart = corev1.RestartPolicy(*c.RestartPolicy)
		}
	}
	p.Spec = corev1.PodSpec{
		NodeName: p.Spec.NodeName, RestartPolicy: restart, ActiveDeadlineSeconds: p.Spec.ActiveDeadlineSeconds, Volumes: volumes,
		RuntimeClassName: p.Spec.RuntimeClassName, HostPID: p.Spec.HostPID,
	}
	status := corev1.PodStatus{Phase: p.Status.Phase}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			status.Conditions = []corev1.PodCondition{{Type: c.Type, Status: c.Status}}
		}
	}
	switch {
	case runs(p):
		status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	case hasRun(p):
		status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}}
	}
	p.Status = status
}

// runs returns whether the API says that a container of the pod runs.
func runs(p *corev1.Pod) bool {
	return slices.ContainsFunc(statusesOf(p), func(c corev1.ContainerStatus) bool { return c.State.Running != nil })
}

// hasRun returns whether a container of the pod was ever started.
func hasRun(p *corev1.Pod) bool {
	return slices.ContainsFunc(statusesOf(p), func(c corev1.ContainerStatus) bool {
		return c.State.Running != nil || c.State.Terminated != nil || c.LastTerminationState.Terminated != nil || c.RestartCount > 0
	})
}

func statusesOf(p *corev1.Pod) []corev1.ContainerStatus {
	return slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses)
}
