package cluster

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-addons/node-healer/pkg/api/clustersettings"
	"github.com/csi-addons/node-healer/test/harness/kubetest"
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
	p.Annotations = map[string]string{clustersettings.ModeAnnotation: strings.Repeat("x", much)}
	podKind.strip(p)
	if len(p.Spec.Volumes) > maxPodVolumes || len(p.Spec.Containers) > 0 || len(p.Annotations[clustersettings.ModeAnnotation]) > maxModeBytes {
		t.Errorf("%d volumes, %d containers, %d bytes of a mode", len(p.Spec.Volumes), len(p.Spec.Containers), len(p.Annotations[clustersettings.ModeAnnotation]))
	}
	for _, v := range p.Spec.Volumes {
		if n := len(v.HostPath.Path); n > maxPluginPath {
			t.Fatalf("a path of %d bytes", n)
		}
	}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{clustersettings.ModeAnnotation: strings.Repeat("x", much), "x": strings.Repeat("x", much)}}}
	claimKind.strip(claim)
	if kept := claim.Annotations; len(kept) != 1 || len(kept[clustersettings.ModeAnnotation]) > maxModeBytes {
		t.Error("the annotations of a claim are kept as they are")
	}
}

// TestPodIsStripped: what is kept of a pod tells which volumes it has, and no more.
func TestPodIsStripped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := kubetest.NewAPI()
		_, claim := kubetest.Volume("pv-1")
		pod := kubetest.Pod("app", claim)
		pod.Labels = map[string]string{"a": "b"}
		pod.Spec.Containers = []corev1.Container{{Name: "app", Env: []corev1.EnvVar{{Name: "PASSWORD", Value: "secret"}}}}
		pod.Spec.Volumes = append(pod.Spec.Volumes,
			corev1.Volume{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}},
			corev1.Volume{Name: "host", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/var/lib/kubelet/plugins/x"}}},
			corev1.Volume{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}},
			corev1.Volume{Name: "inline", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{
				Driver: kubetest.DriverName, VolumeAttributes: map[string]string{"password": "secret"},
			}}})
		deleted := metav1.NewTime(time.Now())
		pod.DeletionTimestamp = &deleted
		kubetest.RunOnce(pod)
		api.Put(kubetest.Node(), pod)
		c, end := following(t, api)
		defer end()
		got := c.pod("uid-of-app")
		var names []string
		for _, v := range got.Spec.Volumes {
			names = append(names, v.Name)
		}
		if strings.Join(names, " ") != "data scratch inline" || got.Spec.Volumes[2].CSI.VolumeAttributes != nil {
			t.Errorf("its volumes are %v", got.Spec.Volumes)
		}
		if got.Spec.Containers != nil || got.Labels != nil {
			t.Errorf("too much is kept: %v", got)
		}
		if got.DeletionTimestamp == nil || got.Spec.NodeName != kubetest.NodeName || got.Status.Phase != corev1.PodRunning || !hasRun(got) {
			t.Errorf("too little is kept: %v", got)
		}
	})
}
