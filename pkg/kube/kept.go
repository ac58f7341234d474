package kube

import (
	"slices"
	"unique"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// Of volumes and claims a large cluster has thousands. The API's own types have
// room for everything: they would take three times the memory.

// named is what is kept of such an object's metadata.
type named struct {
	namespace, name string
	uid             types.UID
	// mode is the value of the mode annotation, nil without one.
	mode *string
}

func nameFrom(o metav1.Object) named {
	// Many are in one namespace, or of one class or driver: unique keeps one copy.
	n := named{namespace: unique.Make(o.GetNamespace()).Value(), name: o.GetName(), uid: o.GetUID()}
	if mode, set := modeOf(o); set {
		n.mode = &mode
	}
	return n
}

// GetObjectMeta implements metav1.ObjectMetaAccessor, by which an informer knows
// an object's name.
func (n *named) GetObjectMeta() metav1.Object {
	o := &metav1.ObjectMeta{Namespace: n.namespace, Name: n.name, UID: n.uid}
	if n.mode != nil {
		o.Annotations = map[string]string{modeAnnotation: *n.mode}
	}
	return o
}

// volume is a PersistentVolume.
type volume struct {
	named
	// driver and handle are empty for a volume that is not CSI's.
	driver, handle string
	class          string
	// claim is what it is bound to, as <namespace>/<name>, and that one's UID;
	// empty for a volume that is free.
	claim    string
	claimUID types.UID
	// shared is true when several nodes may write to it at once.
	shared bool
}

func volumeFrom(o *corev1.PersistentVolume) *volume {
	v := &volume{
		named: nameFrom(o), class: unique.Make(o.Spec.StorageClassName).Value(),
		shared: slices.Contains(o.Spec.AccessModes, corev1.ReadWriteMany),
	}
	if csi := o.Spec.CSI; csi != nil {
		v.driver, v.handle = unique.Make(csi.Driver).Value(), csi.VolumeHandle
	}
	if ref := o.Spec.ClaimRef; ref != nil {
		v.claim, v.claimUID = ref.Namespace+"/"+ref.Name, ref.UID
	}
	return v
}

func claimFrom(o *metav1.PartialObjectMetadata) *named {
	n := nameFrom(o)
	return &n
}

// keeping makes a transform of what is kept of an object.
func keeping[T metav1.Object, K any](from func(T) K) cache.TransformFunc {
	return func(o any) (any, error) {
		if object, whole := o.(T); whole {
			return from(object), nil
		}
		return o, nil // kept already, or a tombstone
	}
}
