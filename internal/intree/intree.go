// Package intree knows which CSI volumes the objects of Kubernetes mean: also those of plugins that were in its own
// tree and are CSI drivers now.
package intree

import (
	"cmp"
	"path"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

var provisionersSecret = regexp.MustCompile(`^.*?azure-storage-account-(.+)-secret.*$`)

// CSI returns driver and handle by which kubelet mounts a PersistentVolume, also one of an in-tree plugin (k8s.io/csi-translation-lib);
// nil for other ones. Classes of such a plugin, as gp2 of EKS, have new PersistentVolumes made in that form, too.
func CSI(v *corev1.PersistentVolume) *corev1.CSIPersistentVolumeSource {
	switch s := v.Spec; {
	case s.CSI != nil:
		return s.CSI
	case s.AWSElasticBlockStore != nil: // vol-1, aws:///vol-1 or aws://<zone>/vol-1
		return &corev1.CSIPersistentVolumeSource{Driver: "ebs.csi.aws.com", VolumeHandle: path.Base(s.AWSElasticBlockStore.VolumeID)}
	case s.AzureDisk != nil:
		return &corev1.CSIPersistentVolumeSource{Driver: "disk.csi.azure.com", VolumeHandle: s.AzureDisk.DataDiskURI}
	case s.Cinder != nil:
		return &corev1.CSIPersistentVolumeSource{Driver: "cinder.csi.openstack.org", VolumeHandle: s.Cinder.VolumeID}
	case s.VsphereVolume != nil:
		return &corev1.CSIPersistentVolumeSource{Driver: "csi.vsphere.vmware.com", VolumeHandle: s.VsphereVolume.VolumePath}
	case s.PortworxVolume != nil:
		return &corev1.CSIPersistentVolumeSource{Driver: "pxd.portworx.com", VolumeHandle: s.PortworxVolume.VolumeID}
	case s.AzureFile != nil:
		namespace := ptr.Deref(s.AzureFile.SecretNamespace, ptr.Deref(s.ClaimRef, corev1.ObjectReference{}).Namespace)
		account := provisionersSecret.ReplaceAllString(s.AzureFile.SecretName, "$1") // else the whole name
		group := v.Annotations["kubernetes.io/azure-file-resource-group"]
		return &corev1.CSIPersistentVolumeSource{Driver: "file.csi.azure.com", VolumeHandle: strings.Join([]string{group, account, s.AzureFile.ShareName, v.Name, namespace}, "#")}
	case s.GCEPersistentDisk != nil:
		zone := cmp.Or(v.Labels[corev1.LabelFailureDomainBetaZone], v.Labels[corev1.LabelTopologyZone], "UNSPECIFIED")
		where := "zones/" + zone
		if first, _, regional := strings.Cut(zone, "__"); regional { // europe-west1-b__europe-west1-c
			where = "regions/" + first[:max(0, strings.LastIndexByte(first, '-'))]
		}
		return &corev1.CSIPersistentVolumeSource{Driver: "pd.csi.storage.gke.io", VolumeHandle: "projects/UNSPECIFIED/" + where + "/disks/" + s.GCEPersistentDisk.PDName}
	}
	return nil
}

// ClaimOf returns the name of the claim of a pod's volume; empty: it is of no claim. The claim of a generic
// ephemeral volume is named after pod and volume.
func ClaimOf(pod *corev1.Pod, v *corev1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		return pod.Name + "-" + v.Name
	}
	return ""
}
