package host

import (
	"path"
	"strings"

	"github.com/csi-addons/node-healer/internal/ops"
	"github.com/csi-addons/node-healer/pkg/mount"
)

// probeOf returns the query for a probe of the mount's superblock. With a block
// device below it, one block of that is read too: a filesystem answers from memory.
func (n *Node) probeOf(m Mount) *ops.ProbeQuery {
	q := n.deviceOf(m)
	q.Path = m.Path
	if m.FSType != "btrfs" {
		q.SuperMajor, q.SuperMinor = m.Dev.Major, m.Dev.Minor
	}
	q.Around = n.fewBeside(m)
	q.Root = !mount.IsType(m.FSType, mount.Disk|mount.Memory|mount.DeviceNodes) // else its root is in memory
	_, known := n.uuids.get(m.ID)
	q.UUID = onDevice(m) && !known
	q.Space = true
	q.Backing = true
	q.Source = deviceSource(m)
	q.Thawed = mount.IsType(m.FSType, mount.Disk) && n.probes.outstanding(thawOf(m)) == nil
	return &q
}

// maxBeside bounds the mounts that the kernel has to examine to clone the directory
// above one of them: some 30 ns each, during which no other process can mount.
const maxBeside = 1000

// fewBeside reports whether a clone may be made of the directory above a mount point:
// one that has no other mount in it, as all of kubelet's.
func (n *Node) fewBeside(m Mount) bool {
	if k := n.kubelet.Layout(m.Path).Kind; k == LayoutOther || k == LayoutSubpath {
		return false
	}
	table, err := n.Topology()
	return err == nil && table.Beside(m) <= maxBeside
}

// deviceOf returns a query that reads the device below a mount, if it has one.
func (n *Node) deviceOf(m Mount) ops.ProbeQuery {
	if m.Dev.Major == 0 {
		return ops.ProbeQuery{} // btrfs tells by its source
	}
	name := n.cfg.Sysfs.Name(m.Dev)
	if name == "" {
		return ops.ProbeQuery{}
	}
	return ops.ProbeQuery{Device: "/dev/" + name, DeviceMajor: m.Dev.Major, DeviceMinor: m.Dev.Minor}
}

// onDevice reports whether the mount's device number may be a block device: anonymous
// ones have major 0.
func onDevice(m Mount) bool { return m.Dev.Major != 0 || deviceSource(m) != "" }

// deviceSource returns the source when it is what tells the block device (btrfs
// shows an anonymous number).
func deviceSource(m Mount) string {
	if m.FSType == "btrfs" && strings.HasPrefix(m.Source, "/dev/") && path.Clean(m.Source) == m.Source {
		return m.Source
	}
	return ""
}
