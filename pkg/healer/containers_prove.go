package healer

import (
	"slices"

	"github.com/csi-addons/node-healer/pkg/host"
)

// prove says why a container's mount is known to be this volume's, or why it is
// not. A device number is used again when the last mount of a superblock is gone,
// so it needs a witness that the superblock is still the volume's own.
func (o *observation) prove(m host.ContainerMount, all []host.ContainerMount, now host.Mount) (proof, writeCheck string) {
	dev := m.Mount.Dev
	if dev == now.Dev && host.IsNFS(now.FSType) && !m.Mount.Guarded() { // it is stale
		switch {
		case m.Mount.Source != now.Source:
			return "", "it shows another directory of the server than the volume does"
		case !slices.Contains(o.pods(), m.PodUID) || o.othersOfPod(m.PodUID, now):
			return "", "other volumes share the filesystem instance, and nothing says that it is this one"
		}
		return "it shows the directory of the server that the volume had, in a pod that has no other such volume", ""
	}
	if dev == now.Dev {
		return "an interrupted replacement left it", ""
	}
	if at, here := o.c.onHost(dev); here {
		return "the host has the same filesystem instance at " + at, ""
	}
	for _, f := range o.c.previous() {
		if f.Dev != dev {
			continue
		}
		if m.Mount.ID != 0 && m.Mount.ID <= f.Newest {
			return "it was there when this was the volume's filesystem instance", ""
		}
		for _, other := range all {
			if _, known := f.Mount(other.Mount.ID); known && other.Mount.Dev == dev {
				return "it is the filesystem instance that was replaced on the host", ""
			}
		}
	}
	switch r := o.c.Record; {
	case r == nil || r.BootID != o.c.BootID:
		return "", "the volume was not seen healthy in this boot"
	case !slices.ContainsFunc(r.MountPoints, func(p MountPointRecord) bool { return p.Dev == dev }):
		return "", "nothing ties this filesystem instance to the volume"
	case m.Mount.ID == 0 || m.Mount.ID > o.engine.scanned.newestOf(volumeKey(o.c.Driver, o.c.Volume.ID), r):
		return "", "it was mounted after the volume was last seen healthy, and another filesystem may have had the device number by then"
	}
	return "it was there when this was the volume's filesystem instance", ""
}

// othersOfPod is true when a pod has another volume of the same type and source on
// the host.
func (o *observation) othersOfPod(pod string, now host.Mount) bool {
	kubelet := o.node.Kubelet()
	return slices.ContainsFunc(o.table.Mounts(), func(h host.Mount) bool {
		l := kubelet.Layout(h.Path)
		if l.Kind != host.LayoutPod || l.PodUID != pod {
			return false
		}
		_, own := o.c.MountPoint(h.Path)
		return !own && h.FSType == now.FSType && h.Source == now.Source
	})
}
