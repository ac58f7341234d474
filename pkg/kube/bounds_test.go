package kube

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A pod's creator may fill it with megabytes; little of it is kept.
func TestStrippedPodIsSmall(t *testing.T) {
	const much = 5000
	isController := true
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{Kind: "DaemonSet", Name: "set", Controller: &isController}}}}
	for i := range much {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{
			Path: fmt.Sprint("/plugins/", strings.Repeat("x", i)),
		}}})
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Args: []string{strings.Repeat("x", i)}})
	}
	p.Annotations = map[string]string{ModeAnnotation: strings.Repeat("x", much)}
	podKind.strip(p)
	if len(p.Spec.Volumes) > maxPodVolumes || len(p.Spec.Containers) > 0 || len(p.Annotations[ModeAnnotation]) > maxModeBytes {
		t.Errorf("%d volumes, %d containers, %d bytes of a mode", len(p.Spec.Volumes), len(p.Spec.Containers), len(p.Annotations[ModeAnnotation]))
	}
	for _, v := range p.Spec.Volumes {
		if n := len(v.HostPath.Path); n > maxPluginPath {
			t.Fatalf("a path of %d bytes", n)
		}
	}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{ModeAnnotation: strings.Repeat("x", much), "x": strings.Repeat("x", much)}}}
	claimKind.strip(claim)
	if kept := claim.Annotations; len(kept) != 1 || len(kept[ModeAnnotation]) > maxModeBytes {
		t.Error("the annotations of a claim are kept as they are")
	}
}
