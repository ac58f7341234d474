package kube

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// apiObject is what the API has. A nil one stands for "there is none".
type apiObject interface {
	runtime.Object
	metav1.Object
}

// kind is one resource that is read by name.
type kind[T apiObject] struct {
	group, resource string
	empty           func() T
	// strip throws away what nobody here asks for, beside the metadata.
	strip func(T)
	// label is the one label that is kept.
	label string
}

var (
	podKind       = kind[*corev1.Pod]{resource: "pods", empty: func() *corev1.Pod { return &corev1.Pod{} }, strip: stripPod}
	nodeKind      = kind[*corev1.Node]{resource: "nodes", empty: func() *corev1.Node { return &corev1.Node{} }, strip: stripNode}
	configMapKind = kind[*corev1.ConfigMap]{
		resource: "configmaps", empty: func() *corev1.ConfigMap { return &corev1.ConfigMap{} },
		strip: func(m *corev1.ConfigMap) { m.BinaryData = nil },
	}
	namespaceKind = kind[*corev1.Namespace]{
		resource: "namespaces", empty: func() *corev1.Namespace { return &corev1.Namespace{} },
		strip: func(*corev1.Namespace) {}, label: enforceLabel,
	}
	volumeKind = kind[*corev1.PersistentVolume]{
		resource: "persistentvolumes", empty: func() *corev1.PersistentVolume { return &corev1.PersistentVolume{} }, strip: stripVolume,
	}
	claimKind = kind[*corev1.PersistentVolumeClaim]{
		resource: "persistentvolumeclaims", empty: func() *corev1.PersistentVolumeClaim { return &corev1.PersistentVolumeClaim{} },
		strip: func(c *corev1.PersistentVolumeClaim) {
			c.Spec = corev1.PersistentVolumeClaimSpec{VolumeName: c.Spec.VolumeName}
			c.Status = corev1.PersistentVolumeClaimStatus{}
		},
	}
	classKind = kind[*storagev1.StorageClass]{
		group: storagev1.GroupName, resource: "storageclasses", empty: func() *storagev1.StorageClass { return &storagev1.StorageClass{} },
		strip: func(c *storagev1.StorageClass) { *c = storagev1.StorageClass{ObjectMeta: c.ObjectMeta} },
	}
	driverKind = kind[*storagev1.CSIDriver]{
		group: storagev1.GroupName, resource: "csidrivers", empty: func() *storagev1.CSIDriver { return &storagev1.CSIDriver{} },
		strip: func(*storagev1.CSIDriver) {},
	}
)

// keep strips an object of all that nobody here asks for.
func (k kind[T]) keep(o T) {
	o.SetManagedFields(nil)
	o.SetFinalizers(nil)
	label, labelled := o.GetLabels()[k.label]
	o.SetLabels(nil)
	if labelled {
		o.SetLabels(map[string]string{k.label: label})
	}
	mode, set := modeOf(o)
	o.SetAnnotations(nil)
	if set {
		o.SetAnnotations(map[string]string{modeAnnotation: mode})
	}
	k.strip(o)
}

func stripNode(n *corev1.Node) { n.Spec.PodCIDRs, n.Status = nil, corev1.NodeStatus{} }

func stripVolume(v *corev1.PersistentVolume) {
	spec := corev1.PersistentVolumeSpec{AccessModes: v.Spec.AccessModes, ClaimRef: v.Spec.ClaimRef, StorageClassName: v.Spec.StorageClassName}
	if csi := v.Spec.CSI; csi != nil {
		spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: csi.Driver, VolumeHandle: csi.VolumeHandle}
	}
	v.Spec, v.Status = spec, corev1.PersistentVolumeStatus{}
}

// The most that is kept of one pod: more volumes than kubelet mounts for one, and
// longer paths than a socket has (unix(7)). Whoever may make pods may write megabytes
// into each. What goes beyond that is not known: such a volume counts as not wanted,
// and such a pod is no driver's.
const (
	maxPodVolumes = 512
	maxPluginPath = 256
)

// stripPod keeps what tells which volumes a pod has, and of a DaemonSet's pod
// what tells whether it is a CSI driver's.
func stripPod(p *corev1.Pod) {
	daemon := ownedByDaemonSet(p)
	volumes := make([]corev1.Volume, 0, min(len(p.Spec.Volumes), maxPodVolumes))
	for _, v := range p.Spec.Volumes {
		if len(volumes) == maxPodVolumes {
			break
		}
		switch {
		case v.PersistentVolumeClaim != nil || daemon && v.HostPath != nil && len(v.HostPath.Path) <= maxPluginPath:
			volumes = append(volumes, v)
		case v.Ephemeral != nil:
			v.Ephemeral = &corev1.EphemeralVolumeSource{} // its claim's name follows from the pod's
			volumes = append(volumes, v)
		case v.CSI != nil:
			v.CSI = &corev1.CSIVolumeSource{Driver: v.CSI.Driver}
			volumes = append(volumes, v)
		}
	}
	p.Spec = corev1.PodSpec{NodeName: p.Spec.NodeName, RestartPolicy: p.Spec.RestartPolicy, Volumes: volumes}
	status := corev1.PodStatus{Phase: p.Status.Phase, Conditions: readyOnly(p.Status.Conditions)}
	if hasRun(p) {
		status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}}
	}
	p.Status = status
}

// hasRun is true when a container of the pod was ever started.
func hasRun(p *corev1.Pod) bool {
	return slices.ContainsFunc(slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses), func(c corev1.ContainerStatus) bool {
		return c.State.Running != nil || c.State.Terminated != nil || c.LastTerminationState.Terminated != nil || c.RestartCount > 0
	})
}

func readyOnly(all []corev1.PodCondition) []corev1.PodCondition {
	for _, c := range all {
		if c.Type == corev1.PodReady {
			return []corev1.PodCondition{{Type: c.Type, Status: c.Status}}
		}
	}
	return nil
}
