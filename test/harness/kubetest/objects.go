package kubetest

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Names of the objects below.
const (
	NodeName   = "node-1"
	DriverName = "disk.csi.example.com"
	Handle     = "vol-1"
)

// Node returns this node.
func Node() *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: NodeName}} }

// Volume returns a volume and the claim that it is bound to.
func Volume(name string) (*corev1.PersistentVolume, *corev1.PersistentVolumeClaim) {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "claim-of-" + name, UID: types.UID("uid-of-claim-" + name)}}
	claim.Spec.VolumeName = name
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			ClaimRef:    &corev1.ObjectReference{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
		},
	}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: DriverName, VolumeHandle: Handle}
	return pv, claim
}

// Pod returns a pod of the node that uses a claim.
func Pod(name string, claim *corev1.PersistentVolumeClaim) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: claim.Namespace, Name: name, UID: types.UID("uid-of-" + name)},
		Spec:       corev1.PodSpec{NodeName: NodeName, Volumes: []corev1.Volume{{Name: "data"}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
	pod.Spec.Volumes[0].PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name}
	return pod
}

// Attachment returns the attachment of a volume to a node.
func Attachment(pv *corev1.PersistentVolume, node string) *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: "csi-" + pv.Name + "-" + node},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: DriverName, NodeName: node,
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv.Name},
		},
		Status: storagev1.VolumeAttachmentStatus{Attached: true},
	}
}

// Run runs a function in a bubble until it waits, and returns a function that ends
// it: at once, without any clock having to advance.
func Run(t *testing.T, run func(context.Context)) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); run(ctx) }()
	synctest.Wait()
	return func() {
		t.Helper()
		cancel()
		synctest.Wait()
		select {
		case <-done:
		default:
			t.Error("it still runs after its context ended")
			<-done
		}
	}
}

// Terminate marks an object as being deleted.
func Terminate(o metav1.Object) {
	now := metav1.NewTime(time.Now())
	o.SetDeletionTimestamp(&now)
}

// RunOnce makes a pod that of a job.
func RunOnce(p *corev1.Pod) {
	p.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
}
