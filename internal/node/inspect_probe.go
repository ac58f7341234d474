package node

import (
	"path"
	"strings"

	"github.com/csi-addons/node-healer/internal/ops"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/facts/layout"
)

// probeOf returns the query for a probe of the mount's superblock. With a block
// device below it, one block of that is read too: a filesystem answers from memory.
func (n *Node) probeOf(m facts.Mount) *ops.ProbeQuery {
	q := ops.ProbeQuery{
		Path:   m.Path,
		Around: n.fewBeside(m),
		Root:   !facts.IsType(m.FSType, facts.Disk|facts.Memory|facts.DeviceNodes), // else its root is in memory
		Source: deviceSource(m),
		Thawed: facts.IsType(m.FSType, facts.Disk) && n.probes.outstanding(thawOf(m)) == nil,
	}
	if m.FSType != "btrfs" {
		q.Superblock = m.Dev
	}
	if m.Dev.Major != 0 { // anonymous numbers have major 0; btrfs tells by its source
		if name := n.name(m.Dev); name != "" {
			q.Device, q.Number = "/dev/"+name, m.Dev
		}
	}
	q.UUID = m.Dev.Major != 0 || q.Source != ""
	return &q
}

// maxBeside bounds the mounts that the kernel has to examine to clone the directory
// above one of them: some 30 ns each, during which no other process can mount.
const maxBeside = 1000

// fewBeside reports whether a clone may be made of the directory above a mount point:
// one that has no other mount in it, as all of kubelet's.
func (n *Node) fewBeside(m facts.Mount) bool {
	if k := n.kubelet.Layout(m.Path).Kind; k == layout.Other || k == layout.Subpath {
		return false
	}
	table, err := n.Topology()
	return err == nil && table.Beside(m) <= maxBeside
}

// deviceSource returns the source when it is what tells the block device (btrfs
// shows an anonymous number).
func deviceSource(m facts.Mount) string {
	if m.FSType == "btrfs" && strings.HasPrefix(m.Source, "/dev/") && path.Clean(m.Source) == m.Source {
		return m.Source
	}
	return ""
}
