package kube

import (
	"slices"

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
func (c *Cluster) volumesOf(n volumeName) []*volume {
	if n.directory != "" {
		pv, known := one[*volume](c.volumes, n.directory)
		if !known || !n.fits(pv) {
			return nil
		}
		return []*volume{pv}
	}
	return slices.DeleteFunc(indexed[*volume](c.volumes, byHandle, n.handle), func(pv *volume) bool { return !n.fits(pv) })
}

func (n volumeName) fits(pv *volume) bool {
	return pv.driver != "" && pv.handle == n.handle && (n.driver == "" || pv.driver == n.driver)
}
