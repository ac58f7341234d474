package cluster

import (
	"crypto/sha256"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Volume is a volume of a CSI driver and the claim that it is bound to. Its
// fields have the values of the harness's volume of that name where there is
// one.
type Volume struct {
	// PV is the PersistentVolume's name, ID the driver's handle.
	PV, ID, Driver   string
	Namespace, Claim string
	// Class is the StorageClass, none if empty.
	Class string
	// Access is ReadWriteOnce if empty.
	Access corev1.PersistentVolumeAccessMode
	// Block is true for a raw block volume.
	Block bool
	// Source has the rest of what the driver is told.
	Source  corev1.CSIPersistentVolumeSource
	Options []string
}

// Bind makes the volume and its claim, bound to each other as the binder would.
func (c *Cluster) Bind(tb testing.TB, v Volume) (*corev1.PersistentVolume, *corev1.PersistentVolumeClaim) {
	tb.Helper()
	claim := Create(tb, c, v.claim())
	pv := v.persistentVolume()
	pv.Spec.ClaimRef = &corev1.ObjectReference{
		APIVersion: "v1", Kind: "PersistentVolumeClaim",
		Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID, ResourceVersion: claim.ResourceVersion,
	}
	return Create(tb, c, pv), claim
}

func (v Volume) persistentVolume() *corev1.PersistentVolume {
	mode, source := v.mode(), v.Source
	source.Driver, source.VolumeHandle = v.Driver, v.ID
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name:        v.PV,
			Annotations: map[string]string{"pv.kubernetes.io/provisioned-by": v.Driver},
		},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes: v.access(), Capacity: capacity(), StorageClassName: v.Class, VolumeMode: &mode,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{CSI: &source},
			MountOptions:                  v.Options,
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound},
	}
}

func (v Volume) claim() *corev1.PersistentVolumeClaim {
	mode := v.mode()
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: v.Namespace, Name: v.Claim,
			Annotations: map[string]string{"pv.kubernetes.io/bind-completed": "yes"},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: v.access(), Resources: corev1.VolumeResourceRequirements{Requests: capacity()},
			VolumeName: v.PV, StorageClassName: &v.Class, VolumeMode: &mode,
		},
		Status: corev1.PersistentVolumeClaimStatus{
			Phase: corev1.ClaimBound, AccessModes: v.access(), Capacity: capacity(),
		},
	}
}

func (v Volume) access() []corev1.PersistentVolumeAccessMode {
	if v.Access == "" {
		return []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	}
	return []corev1.PersistentVolumeAccessMode{v.Access}
}

func (v Volume) mode() corev1.PersistentVolumeMode {
	if v.Block {
		return corev1.PersistentVolumeBlock
	}
	return corev1.PersistentVolumeFilesystem
}

func capacity() corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
}

// Attachment says that a volume is attached to a node. The finalizer is the
// attacher's: a deleted one goes on to exist until it has detached.
func (v Volume) Attachment(node string) *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{
			Name:       fmt.Sprintf("csi-%x", sha256.Sum256([]byte(v.ID+v.Driver+node))),
			Finalizers: []string{"external-attacher/" + v.Driver},
		},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: v.Driver, NodeName: node,
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &v.PV},
		},
		Status: storagev1.VolumeAttachmentStatus{Attached: true, AttachmentMetadata: map[string]string{"devicePath": "/dev/none"}},
	}
}

// StorageClass is a class of a driver's volumes.
func StorageClass(name, driver string) *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: driver}
}

// CSIDriver says whether a driver's volumes are attached at all.
func CSIDriver(name string, attachRequired bool) *storagev1.CSIDriver {
	return &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       storagev1.CSIDriverSpec{AttachRequired: &attachRequired},
	}
}
