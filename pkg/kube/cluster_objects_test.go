package kube

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

// What a Cluster is about in these tests.
const (
	nodeName   = "node-1"
	driverName = "disk.csi.example.com"
	handle     = "vol-1"
)

// aNode is the node that asks.
func aNode() *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}} }

// aVolume gives a volume and the claim that it is bound to.
func aVolume(name string) (*corev1.PersistentVolume, *corev1.PersistentVolumeClaim) {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "claim-of-" + name, UID: types.UID("uid-of-claim-" + name)}}
	claim.Spec.VolumeName = name
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			ClaimRef:    &corev1.ObjectReference{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
		},
	}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: handle}
	return pv, claim
}

// aPod is a pod of the node that uses a claim.
func aPod(name string, claim *corev1.PersistentVolumeClaim) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: claim.Namespace, Name: name, UID: types.UID("uid-of-" + name)},
		Spec:       corev1.PodSpec{NodeName: nodeName, Volumes: []corev1.Volume{{Name: "data"}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
	pod.Spec.Volumes[0].PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name}
	return pod
}

// anAttachment says that a volume is attached to a node.
func anAttachment(pv *corev1.PersistentVolume, node string) *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: "csi-" + pv.Name + "-" + node},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: driverName, NodeName: node,
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv.Name},
		},
		Status: storagev1.VolumeAttachmentStatus{Attached: true},
	}
}

// configOf is that of the tests' clusters.
func configOf(t *testing.T, api *clusterAPI) ClusterConfig {
	t.Helper()
	return ClusterConfig{
		Client: api.client(t), Node: nodeName, Namespace: "healer", ConfigMap: "settings",
		KubeletRoots: []string{kubeletRoot}, DriverGrace: time.Minute,
	}
}

// following runs a cluster in a bubble until all is known that its informers tell,
// and gives a function that ends it.
func following(t *testing.T, api *clusterAPI) (c *Cluster, end func()) {
	t.Helper()
	c, err := NewCluster(configOf(t, api))
	if err != nil {
		t.Fatal(err)
	}
	end = runs(t, c.Run)
	c.finalized(t.Context()) // reflectors may wait for a moment before they ask
	return c, end
}

// wantedNow asks the API whether the volume is wanted at the mount point of a pod.
func (c *Cluster) wantedNow(t *testing.T, name volumeName, podUID string) error {
	t.Helper()
	w, err := c.ask(t.Context(), name, podUID, false)
	if err != nil {
		return err
	}
	return w.wanted(name, podUID, nodeName)
}

// mayWriteNow asks it whether this node may write to the volume's device.
func (c *Cluster) mayWriteNow(t *testing.T, name volumeName) error {
	t.Helper()
	w, err := c.ask(t.Context(), name, "", true)
	if err != nil {
		return err
	}
	return c.mayWrite(t.Context(), w, name)
}

// runs runs something in a bubble until it waits for others, and gives a function
// that ends it: at once, which is to say without any clock having to go on.
func runs(t *testing.T, run func(context.Context)) (end func()) {
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
			t.Error("it goes on after its end")
			<-done
		}
	}
}
