package kube

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Who may make pods may write megabytes into each; little of it is kept.
func TestLittleIsKeptOfAPod(t *testing.T) {
	const much = 5000
	p := aDaemon(corev1.PodSpec{})
	for i := range much {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{
			Path: fmt.Sprint("/plugins/", strings.Repeat("x", i)),
		}}})
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Args: []string{strings.Repeat("x", i)}})
	}
	p.Annotations = map[string]string{modeAnnotation: strings.Repeat("x", much)}
	podKind.keep(p)
	if len(p.Spec.Volumes) > maxPodVolumes || len(p.Spec.Containers) > 0 || len(p.Annotations[modeAnnotation]) > maxModeBytes {
		t.Errorf("%d volumes, %d containers, %d bytes of a mode", len(p.Spec.Volumes), len(p.Spec.Containers), len(p.Annotations[modeAnnotation]))
	}
	for _, v := range p.Spec.Volumes {
		if n := len(v.HostPath.Path); n > maxPluginPath {
			t.Fatalf("a path of %d bytes", n)
		}
	}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{modeAnnotation: strings.Repeat("x", much), "x": strings.Repeat("x", much)}}}
	claimKind.keep(claim)
	if kept := claim.Annotations; len(kept) != 1 || len(kept[modeAnnotation]) > maxModeBytes {
		t.Error("the annotations of a claim are kept as they are")
	}
	if _, err := parseMode(claim.Annotations[modeAnnotation]); err == nil {
		t.Error("what was cut is a mode")
	}
}

// Pods that come and go, each with names of its own, do not push out a driver that
// is here.
func TestDriversAreBounded(t *testing.T) {
	var d drivers
	start := time.Now()
	d.note(map[string]bool{driverName: true}, start)
	for i := range 10 * maxDrivers {
		d.note(map[string]bool{driverName: true, fmt.Sprint("gone", i): false}, start.Add(time.Duration(i)*time.Millisecond))
		if len(d.seen) > maxDrivers {
			t.Fatalf("%d are remembered", len(d.seen))
		}
	}
	if p := d.seen[driverName]; !p.ready || !p.since.Equal(start) {
		t.Errorf("%+v", p)
	}
}
