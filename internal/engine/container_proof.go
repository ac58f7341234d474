package engine

import (
	"slices"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/facts/layout"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// prove returns why a container's mount is known to be this volume's, or why it is not.
// The kernel gives a device number to another filesystem when the last mount of its
// superblock is gone, so the number alone proves nothing.
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
	if f, known := o.c.PreviousOf(dev); known {
		if m.Mount.ID != 0 && m.Mount.ID <= f.Newest {
			return wasThere, ""
		}
		// While a mount that was seen then is there, so is the superblock.
		if slices.ContainsFunc(s.mounts, func(other facts.ContainerMount) bool { return other.Mount.Dev == dev && hasMount(f, other.Mount.ID) }) {
			return "it is the filesystem instance that was replaced on the host", ""
		}
	}
	switch r := o.c.Record; {
	case !o.c.RecordOfThisBoot():
		return "", "the volume was not seen healthy in this boot"
	case !r.HasDev(dev):
		return "", "nothing ties this filesystem instance to the volume"
	case m.Mount.ID == 0 || m.Mount.ID > o.engine.scanned.newestOf(o.volumeKey(), r):
		return "", "it was mounted after the volume was last seen healthy, and another filesystem may have had the device number by then"
	}
	return wasThere, ""
}

// hasSimilarVolume reports whether a pod has another volume of the same type and source
// on the host.
func (o *observation) hasSimilarVolume(pod string, now facts.Mount) bool {
	kubelet := o.node.Kubelet()
	return slices.ContainsFunc(o.table.Mounts(), func(h facts.Mount) bool {
		l := kubelet.Layout(h.Path)
		if l.Kind != layout.Pod || l.PodUID != pod {
			return false
		}
		_, own := o.c.MountPoint(h.Path)
		return !own && h.FSType == now.FSType && h.Source == now.Source
	})
}

// hasMount reports whether a mount with the unique id was seen; 0 is none.
func hasMount(f healer.PreviousSuperblock, id uint64) bool {
	return id != 0 && slices.ContainsFunc(f.Mounts, func(m healer.PreviousMount) bool { return m.ID == id })
}
