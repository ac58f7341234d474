package controller

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/csi-addons/node-healer/pkg/api/clustersettings"
)

// Who creates pods may fill them with megabytes: of those that use a claim little is kept.
func TestPodsOfAClaimAreKeptSmall(t *testing.T) {
	large := podOn("", "large")
	large.Annotations = map[string]string{"x": strings.Repeat("x", 10_000), clustersettings.ModeAnnotation: "off", safeToEvict: "true"}
	large.Spec.Containers = []corev1.Container{{Args: []string{strings.Repeat("x", 10_000)}}}
	for i := range 1000 {
		large.Spec.Volumes = append(large.Spec.Volumes, corev1.Volume{Name: strconv.Itoa(i), VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	}
	w := newWorld(t, large)
	claim, _ := boundClaim()
	pods, err := w.reconciler.podsOf(t.Context(), claim)
	must(t, err)
	if len(pods) != 1 || pods[0].Size() > 1000 {
		t.Fatalf("%d pods, and %d bytes of the first one", len(pods), pods[0].Size())
	}
	kept := pods[0]
	if forbids(&kept) == "" || kept.Annotations[safeToEvict] != "true" || !uses(&kept, claim) ||
		!slices.ContainsFunc(kept.Spec.Volumes, func(v corev1.Volume) bool { return v.EmptyDir != nil }) {
		t.Errorf("what speaks against an eviction is dropped: %v", kept)
	}
}

func TestPodsOfAClaimThatAreTooMuch(t *testing.T) {
	large := podOn("", "large")
	large.Spec.Tolerations = slices.Repeat([]corev1.Toleration{{Operator: corev1.TolerationOpExists}}, maxKeptBytes/10)
	claim, _ := boundClaim()
	_, err := newWorld(t, large, podOn("node-a", "small")).reconciler.podsOf(t.Context(), claim)
	if end := (*ending)(nil); !errors.As(err, &end) || end.reason != ReasonEvictionRefused {
		t.Errorf("got %v", err)
	}
}
