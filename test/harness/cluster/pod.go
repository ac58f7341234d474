package cluster

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
)

// Pod is a pod that runs on a node and mounts claims of its namespace at /data-0
// and so on. The API gives it its UID.
func Pod(namespace, name, node string, claims ...string) *corev1.Pod {
	app := corev1.Container{Name: "app", Image: "registry.example.com/app"}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.PodSpec{NodeName: node},
	}
	for i, claim := range claims {
		volume := fmt.Sprintf("data-%d", i)
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{
			Name: volume,
			VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{
				ClaimName: claim,
			}},
		})
		app.VolumeMounts = append(app.VolumeMounts, corev1.VolumeMount{Name: volume, MountPath: "/" + volume})
	}
	pod.Spec.Containers = []corev1.Container{app}
	Ready(pod, true)
	return pod
}

// Ready says of a pod that it runs, and is ready or is not.
func Ready(pod *corev1.Pod, ready bool) {
	is := corev1.ConditionFalse
	if ready {
		is = corev1.ConditionTrue
	}
	now := metav1.Now()
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = nil
	for _, kind := range []corev1.PodConditionType{corev1.ContainersReady, corev1.PodReady} {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: kind, Status: is, LastTransitionTime: now})
	}
	pod.Status.ContainerStatuses = nil
	for _, container := range pod.Spec.Containers {
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: container.Name, Image: container.Image, Ready: ready,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
		})
	}
}

// DaemonSet is one of a CSI driver's node plugin, say.
func DaemonSet(namespace, name string) *appsv1.DaemonSet {
	labels := map[string]string{"app": name}
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "registry.example.com/" + name}}},
			},
		},
	}
}

// PodOf is the pod of a DaemonSet that was created, on one node. No other test's pod has
// its name, as with the DaemonSet controller: the API looks first into its cache for
// the pod that a token names, and refuses the token while a pod of that name with
// another UID is there. After an outage that can be minutes.
func PodOf(set *appsv1.DaemonSet, node string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: set.Namespace, Name: set.Name + "-" + utilrand.String(5), Labels: set.Spec.Template.Labels,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("DaemonSet"))},
		},
		Spec: *set.Spec.Template.Spec.DeepCopy(),
	}
	pod.Spec.NodeName = node
	Ready(pod, true)
	return pod
}
