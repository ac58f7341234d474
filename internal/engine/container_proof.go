package engine

import (
	"slices"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/facts/layout"
)

// prove returns why a container's mount is known to be this volume's, or why it is not.
// The kernel gives a device number to another filesystem when the last mount of its
// superblock is gone, so the number alone proves nothing, and what is put into a container
// on its word alone may be another volume's. Two things prove it:
//
//  1. The host has a mount of the same superblock at a mount point of this volume.
//  2. The container's mount has a unique id that is not above the highest one seen while the
//     number was this superblock's. The kernel gives out unique ids upwards and never again,
//     so the mount was there then, and has kept the superblock from being replaced since.
//
// NFS has its own rule: what is mounted anew shares the superblock.
func (o *observation) prove(m facts.ContainerMount, s containerScan) (proof, unproven string) {
	const wasThere = "it was there when this was the volume's filesystem instance"
	dev := m.Mount.Dev
	if dev == s.now.Dev && facts.IsNFS(s.now.FSType) && !m.Mount.Guarded() { // it is stale
		switch {
		case m.Mount.Source != s.now.Source:
			return "", "it shows another directory of the server than the volume does"
		case !slices.Contains(s.pods, m.PodUID) || s.sharing[m.PodUID]:
			return "", "other volumes share the filesystem instance, and nothing says that it is this one"
		}
		return "it shows the directory of the server that the volume had, in a pod that has no other such volume", ""
	}
	if dev == s.now.Dev {
		return "an interrupted replacement left it", ""
	}
	if at, here := onHost(o.c, dev); here {
		return "the host has the same filesystem instance at " + at, ""
	}
	if at, elsewhere := o.elsewhere(dev); elsewhere {
		return "", "the host has the filesystem with that device number at " + at + ", which is not this volume's"
	}
	if f, _ := o.c.PreviousOf(dev); m.Mount.ID != 0 && m.Mount.ID <= f.Newest {
		return wasThere, ""
	}
	switch r := o.c.Record; {
	case !o.c.RecordOfThisBoot():
		return "", "the volume was not seen healthy in this boot"
	case !r.HasDev(dev):
		return "", "nothing ties this filesystem instance to the volume"
	case m.Mount.ID == 0 || m.Mount.ID > r.NewestOf(dev):
		return "", "it was mounted after the volume was last seen healthy, and another filesystem may have had the device number by then"
	}
	return wasThere, ""
}

// elsewhere returns one of kubelet's paths, but none of the volume's, at which the host has a
// superblock with this device number. The number was given out again, and a container's mount with
// it is another volume's; or the path is the volume's, and nothing in this call says so.
func (o *observation) elsewhere(dev facts.Dev) (path string, found bool) {
	for _, h := range o.table.Of(dev) {
		if _, own := o.c.MountPoint(h.Path); !own && o.node.Kubelet().Layout(h.Path).Kind != layout.Other {
			return h.Path, true
		}
	}
	return "", false
}

// sharing returns the pods that have another volume of the same type and source on the host.
func (o *observation) sharing(now facts.Mount) map[string]bool {
	pods := map[string]bool{}
	for _, h := range o.table.Mounts() {
		if h.FSType != now.FSType || h.Source != now.Source {
			continue
		}
		l := o.node.Kubelet().Layout(h.Path)
		if _, own := o.c.MountPoint(h.Path); !own && l.Kind == layout.Pod {
			pods[l.PodUID] = true
		}
	}
	return pods
}
