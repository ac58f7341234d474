package bench

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
)

// bigCluster are the objects of a large cluster, each about as large as they are
// there: with labels, annotations and status, and with what the API adds by
// itself (managedFields).
type bigCluster struct {
	api       kubernetes.Interface
	namespace string
	// node has the pods. The volumes are attached to it and to a hundred others.
	node string
}

const (
	crowdPods    = 500
	crowdVolumes = 5_000
	crowdNodes   = 100
	// crowdMakers make them side by side.
	crowdMakers = 16
)

// fill makes the objects. They go with the API.
func (c bigCluster) fill(t *testing.T) {
	t.Helper()
	many(t, crowdVolumes, c.volume)
	many(t, crowdPods, c.pod)
}

// change changes each object that the server follows or may read.
func (c bigCluster) change(t *testing.T) {
	t.Helper()
	word := []byte(`{"metadata":{"annotations":{"example.com/changed":"yes"}}}`)
	many(t, crowdVolumes, func(ctx context.Context, i int) error {
		_, err := c.api.CoreV1().PersistentVolumes().Patch(ctx, volumeOf(i), types.MergePatchType, word, metav1.PatchOptions{})
		return err
	})
	many(t, crowdVolumes, func(ctx context.Context, i int) error {
		_, err := c.api.CoreV1().PersistentVolumeClaims(c.namespace).Patch(ctx, claimOf(i), types.MergePatchType, word, metav1.PatchOptions{})
		return err
	})
	many(t, crowdPods, func(ctx context.Context, i int) error {
		_, err := c.api.CoreV1().Pods(c.namespace).Patch(ctx, podOf(i), types.MergePatchType, word, metav1.PatchOptions{})
		return err
	})
}

func many(t *testing.T, n int, create func(context.Context, int) error) {
	t.Helper()
	var makers sync.WaitGroup
	errs := make([]error, crowdMakers)
	for m := range crowdMakers {
		makers.Go(func() {
			for i := m; i < n && errs[m] == nil; i += crowdMakers {
				errs[m] = create(t.Context(), i)
			}
		})
	}
	makers.Wait()
	for _, err := range errs {
		harness.Must(t, err)
	}
}

// volume makes a volume as a provisioner does, with its claim and attachment.
func (c bigCluster) volume(ctx context.Context, i int) error {
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: c.namespace, Name: claimOf(i), Finalizers: []string{"kubernetes.io/pvc-protection"},
			Labels: labels(i),
			Annotations: map[string]string{
				"pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes",
				"volume.beta.kubernetes.io/storage-provisioner": harness.Driver, "volume.kubernetes.io/storage-provisioner": harness.Driver,
				"volume.kubernetes.io/selected-node": c.nodeOf(i),
			},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: &className, VolumeName: volumeOf(i),
			Resources: corev1.VolumeResourceRequirements{Requests: tenGi()},
		},
		Status: corev1.PersistentVolumeClaimStatus{
			Phase: corev1.ClaimBound, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, Capacity: tenGi(),
		},
	}
	status := claim.Status
	claim, err := c.api.CoreV1().PersistentVolumeClaims(c.namespace).Create(ctx, claim, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	claim.Status = status
	if _, err = c.api.CoreV1().PersistentVolumeClaims(c.namespace).UpdateStatus(ctx, claim, metav1.UpdateOptions{}); err != nil {
		return err
	}
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: volumeOf(i), Finalizers: []string{"kubernetes.io/pv-protection", "external-attacher/" + harness.Driver},
			Annotations: map[string]string{
				"pv.kubernetes.io/provisioned-by":                            harness.Driver,
				"volume.kubernetes.io/provisioner-deletion-secret-name":      "csi-provisioner-secret",
				"volume.kubernetes.io/provisioner-deletion-secret-namespace": "storage-system",
			},
		},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes: claim.Spec.AccessModes, Capacity: tenGi(), StorageClassName: className,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			ClaimRef: &corev1.ObjectReference{
				APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: c.namespace, Name: claim.Name, UID: claim.UID, ResourceVersion: claim.ResourceVersion,
			},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "topology.kubernetes.io/zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"zone-a"}}},
			}}}},
		},
	}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{
		Driver: harness.Driver, VolumeHandle: handleOf(i), FSType: "ext4",
		VolumeAttributes: map[string]string{
			"clusterID": "storage-system", "pool": "replicapool", "imageFormat": "2", "imageFeatures": "layering", "imageName": "csi-vol-" + handleOf(i),
			"journalPool": "replicapool", "storage.kubernetes.io/csiProvisionerIdentity": "1700000000000-8081-" + harness.Driver,
		},
		NodeStageSecretRef:        &corev1.SecretReference{Name: "csi-node-secret", Namespace: "storage-system"},
		ControllerExpandSecretRef: &corev1.SecretReference{Name: "csi-provisioner-secret", Namespace: "storage-system"},
	}
	if pv, err = c.api.CoreV1().PersistentVolumes().Create(ctx, pv, metav1.CreateOptions{}); err != nil {
		return err
	}
	pv.Status = corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound}
	if _, err = c.api.CoreV1().PersistentVolumes().UpdateStatus(ctx, pv, metav1.UpdateOptions{}); err != nil {
		return err
	}
	return c.attach(ctx, i)
}

func (c bigCluster) attach(ctx context.Context, i int) error {
	a := cluster.Volume{PV: volumeOf(i), ID: handleOf(i), Driver: harness.Driver}.Attachment(c.nodeOf(i))
	a.Annotations = map[string]string{"csi.alpha.kubernetes.io/node-id": c.nodeOf(i)}
	status := a.Status
	a, err := c.api.StorageV1().VolumeAttachments().Create(ctx, a, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	a.Status = storagev1.VolumeAttachmentStatus{Attached: status.Attached, AttachmentMetadata: map[string]string{"devicePath": "/dev/disk/by-id/" + handleOf(i)}}
	_, err = c.api.StorageV1().VolumeAttachments().UpdateStatus(ctx, a, metav1.UpdateOptions{})
	return err
}

// pod makes a pod as controllers, admission and kubelet leave it.
func (c bigCluster) pod(ctx context.Context, i int) error {
	pod := cluster.Pod(c.namespace, podOf(i), c.node, claimOf(i*crowdVolumes/crowdPods))
	pod.Labels = labels(i)
	pod.Annotations = map[string]string{
		"kubectl.kubernetes.io/restartedAt": "2026-01-01T00:00:00Z", "prometheus.io/scrape": "true", "prometheus.io/port": "8080",
		"checksum/config": strings.Repeat("0123456789abcdef", 4),
	}
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-frontend-5d4f8c7b9", UID: "00000000-0000-4000-8000-000000000000"}}
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "config", VolumeSource: corev1.VolumeSource{
		ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "web-frontend"}},
	}}, corev1.Volume{Name: "kube-api-access-x", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
		{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}},
		{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"}}},
	}}}})
	pod.Spec.ServiceAccountName = "web-frontend"
	sidecar := corev1.Container{Name: "proxy", Image: "registry.example.com/mesh/proxy@sha256:" + strings.Repeat("0123456789abcdef", 4)}
	pod.Spec.Containers = append(pod.Spec.Containers, sidecar)
	for at := range pod.Spec.Containers {
		container := &pod.Spec.Containers[at]
		for e := range 15 {
			container.Env = append(container.Env, corev1.EnvVar{Name: fmt.Sprintf("SETTING_%d", e), Value: "https://service.namespace.svc.cluster.local:8443/path"})
		}
		container.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("128Mi")}
		container.LivenessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"/bin/check", "--live"}}}}
		container.ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"/bin/check", "--ready"}}}}
	}
	cluster.Ready(pod, true)
	status := pod.Status
	pod, err := c.api.CoreV1().Pods(c.namespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	pod.Status = status
	_, err = c.api.CoreV1().Pods(c.namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	return err
}

func (c bigCluster) nodeOf(i int) string {
	if i%crowdNodes == 0 {
		return c.node
	}
	return fmt.Sprintf("worker-%03d.example.com", i%crowdNodes)
}

var className = "replicated-ssd"

func volumeOf(i int) string { return fmt.Sprintf("pvc-00000000-0000-4000-8000-%012d", i) }
func podOf(i int) string    { return fmt.Sprintf("web-frontend-%d-5d4f8c7b9-x%03d", i%20, i) }
func claimOf(i int) string  { return fmt.Sprintf("data-web-frontend-%d", i) }
func handleOf(i int) string {
	return fmt.Sprintf("0001-000e-storage-system-0000000000000002-00000000-0000-4000-8000-%012d", i)
}

func labels(i int) map[string]string {
	return map[string]string{
		"app.kubernetes.io/name": "web-frontend", "app.kubernetes.io/instance": fmt.Sprintf("web-frontend-%d", i%20), "app.kubernetes.io/version": "1.2.3",
		"app.kubernetes.io/managed-by": "Helm", "helm.sh/chart": "web-frontend-1.2.3", "team": "storefront", "pod-template-hash": "5d4f8c7b9",
	}
}

func tenGi() corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("10Gi")}
}
