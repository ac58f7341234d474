package kube

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// The indexes of feeds.
const (
	byUID    = "uid"    // pods
	byClaim  = "claim"  // pods
	byHandle = "handle" // volumes, whatever their driver
	byDaemon = "daemon" // pods of DaemonSets, all of them
	byGoing  = "going"  // pods that are terminating, but for those of DaemonSets
)

func (c *Client) typed(what request, selector fields.Selector, kind, list runtime.Object) source {
	narrow := func(o metav1.ListOptions) metav1.ListOptions {
		if selector != nil {
			o.FieldSelector = selector.String()
		}
		return o
	}
	return source{
		what: what, kind: kind,
		list: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			into := list.DeepCopyObject()
			return into, c.list(ctx, what, narrow(o), into)
		},
		watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return c.watch(ctx, what, narrow(o))
		},
	}
}

// meta reads of each object its metadata only.
func (c *Client) meta(what request) source {
	kind := c.metadata.Resource(schema.GroupVersionResource{Group: what.Group, Version: "v1", Resource: what.Resource})
	return source{
		what: what, kind: &metav1.PartialObjectMetadata{},
		list: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := kind.List(ctx, o)
			verb := what
			verb.Verb = "list"
			return list, c.explain(verb, err)
		},
		watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := kind.Watch(ctx, o)
			verb := what
			verb.Verb = "watch"
			return w, c.explain(verb, err)
		},
		strip: stripped(func(o *metav1.PartialObjectMetadata) { o.TypeMeta = metav1.TypeMeta{} }),
	}
}

func (c *Client) podsOn(node string) source {
	s := c.typed(request{Resource: "pods"}, fields.OneTermEqualSelector("spec.nodeName", node), &corev1.Pod{}, &corev1.PodList{})
	s.strip = stripped(stripPod)
	s.index = cache.Indexers{
		byUID: func(o any) ([]string, error) { return []string{string(o.(*corev1.Pod).UID)}, nil },
		byDaemon: func(o any) ([]string, error) {
			if ownedByDaemonSet(o.(*corev1.Pod)) {
				return []string{""}, nil
			}
			return nil, nil
		},
		byGoing: func(o any) ([]string, error) {
			if pod := o.(*corev1.Pod); pod.DeletionTimestamp != nil && !ownedByDaemonSet(pod) {
				return []string{""}, nil
			}
			return nil, nil
		},
		byClaim: func(o any) (claims []string, _ error) {
			pod := o.(*corev1.Pod)
			for i := range pod.Spec.Volumes {
				if claim := claimOf(pod, &pod.Spec.Volumes[i]); claim != "" {
					claims = append(claims, pod.Namespace+"/"+claim)
				}
			}
			return claims, nil
		},
	}
	return s
}

func (c *Client) nodeNamed(node string) source {
	s := c.typed(request{Resource: "nodes"}, fields.OneTermEqualSelector(metav1.ObjectNameField, node), &corev1.Node{}, &corev1.NodeList{})
	s.strip = stripped(func(n *corev1.Node) { n.Spec.PodCIDRs, n.Status = nil, corev1.NodeStatus{} })
	return s
}

func (c *Client) persistentVolumes() source {
	s := c.typed(request{Resource: "persistentvolumes"}, nil, &corev1.PersistentVolume{}, &corev1.PersistentVolumeList{})
	s.strip = keeping(volumeFrom)
	s.index = cache.Indexers{byHandle: func(o any) ([]string, error) {
		if v := o.(*volume); v.driver != "" {
			return []string{v.handle}, nil
		}
		return nil, nil
	}}
	return s
}

func (c *Client) claims() source {
	s := c.meta(request{Resource: "persistentvolumeclaims"})
	s.strip = keeping(claimFrom)
	return s
}

func (c *Client) configMap(namespace, name string) source {
	s := c.typed(request{Resource: "configmaps", Namespace: namespace},
		fields.OneTermEqualSelector(metav1.ObjectNameField, name), &corev1.ConfigMap{}, &corev1.ConfigMapList{})
	s.strip = stripped(func(m *corev1.ConfigMap) { m.BinaryData = nil })
	return s
}

// stripped makes a transform of what one kind can do without, beside the
// metadata that nobody here reads.
func stripped[T metav1.Object](more func(T)) cache.TransformFunc {
	return func(o any) (any, error) {
		object, ok := o.(T)
		if !ok {
			return o, nil // a tombstone
		}
		object.SetManagedFields(nil)
		object.SetLabels(nil)
		object.SetFinalizers(nil)
		mode, set := modeOf(object)
		object.SetAnnotations(nil)
		if set {
			object.SetAnnotations(map[string]string{modeAnnotation: mode})
		}
		more(object)
		return object, nil
	}
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
	p.Spec = corev1.PodSpec{NodeName: p.Spec.NodeName, Volumes: volumes}
	p.Status = corev1.PodStatus{Phase: p.Status.Phase, Conditions: readyOnly(p.Status.Conditions)}
}

func readyOnly(all []corev1.PodCondition) []corev1.PodCondition {
	for _, c := range all {
		if c.Type == corev1.PodReady {
			return []corev1.PodCondition{{Type: c.Type, Status: c.Status}}
		}
	}
	return nil
}
