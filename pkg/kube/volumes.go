package kube

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/host"
)

// volumeName is what is known of a volume's name on the node.
type volumeName struct {
	// driver may be empty: before the volume was looked at.
	driver string
	handle string
	// directory is what kubelet named after the PersistentVolume, or after a
	// pod's inline volume; empty for a place that tells none.
	directory string
}

func nameOf(v healer.Volume, driver string, l host.Layout) volumeName {
	return volumeName{driver: driver, handle: v.ID, directory: l.PV}
}

// volumesOf gives the PersistentVolumes that a name may mean: one, but for a
// handle that several objects or drivers share.
func (c *Cluster) volumesOf(n volumeName) []*corev1.PersistentVolume {
	if n.directory != "" {
		pv, known := one[*corev1.PersistentVolume](c.volumes, n.directory)
		if !known || !n.fits(pv) {
			return nil
		}
		return []*corev1.PersistentVolume{pv}
	}
	return slices.DeleteFunc(indexed[*corev1.PersistentVolume](c.volumes, byHandle, n.handle),
		func(pv *corev1.PersistentVolume) bool { return !n.fits(pv) })
}

func (n volumeName) fits(pv *corev1.PersistentVolume) bool {
	csi := pv.Spec.CSI
	return csi != nil && csi.VolumeHandle == n.handle && (n.driver == "" || csi.Driver == n.driver)
}
