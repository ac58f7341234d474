package host

import (
	"context"
	"slices"
)

// VolumePath is a path at which kubelet has a volume, and the volume that kubelet's file
// for the path names.
type VolumePath struct {
	VolData
	Path string
	// Staging is true for a path at which the volume is staged, and not published.
	Staging bool
}

// VolumeMount is a mount at one of kubelet's paths for volumes.
type VolumeMount struct {
	Path string
	// ID is the mount's unique id, or where the kernel has none its reusable one.
	ID     uint64
	Dev    Dev
	FSType string
	// Root is the directory or device node of the superblock that it shows.
	Root string
}

// Volumes returns all paths of this node's volumes: what is mounted at kubelet's paths,
// and what pods have there and is not mounted. What is staged is only found while it is
// mounted: kubelet keeps the directories of volumes that are on their way out. No volume
// is touched.
func (n *Node) Volumes(ctx context.Context) ([]VolumePath, error) {
	table, err := n.Topology()
	if err != nil {
		return nil, err
	}
	asks, err := n.unmounted(ctx, table, n.kubelet.Root+"/"+csiPlugins+"/volumeDevices/publish")
	if err != nil {
		return nil, err
	}
	stacked := map[string]bool{}
	for _, m := range n.volumeMounts(table) {
		if !stacked[m.Path] {
			asks = append(asks, PathQuery{Path: m.Path, VolData: n.kubelet.Layout(m.Path).VolData, Mounted: true})
		}
		stacked[m.Path] = true
	}
	var found []VolumePath
	for some := range slices.Chunk(asks, maxAsked) {
		in, err := n.inspectPaths(ctx, InspectQuery{Paths: some})
		if err != nil {
			return nil, err
		}
		for _, ask := range some {
			info := in.Paths[ask.Path]
			if info.VolData == nil || info.Missing() {
				continue
			}
			kind := n.kubelet.Layout(ask.Path).Kind
			found = append(found, VolumePath{*info.VolData, ask.Path, kind == LayoutStaging || kind == LayoutBlockStaging})
		}
	}
	return found, nil
}

// VolumeMounts returns what is mounted at kubelet's paths for volumes, by the kernel's
// mount table alone.
func (n *Node) VolumeMounts() ([]VolumeMount, error) {
	table, err := n.Topology()
	if err != nil {
		return nil, err
	}
	return n.volumeMounts(table), nil
}

func (n *Node) volumeMounts(table Table) (found []VolumeMount) {
	for _, m := range table.Mounts() {
		switch n.kubelet.Layout(m.Path).Kind {
		case LayoutPod, LayoutBlock, LayoutStaging, LayoutBlockStaging:
			id := m.ID
			if id == 0 {
				id = uint64(m.OldID)
			}
			found = append(found, VolumeMount{m.Path, id, m.Dev, m.FSType, m.Root})
		}
	}
	return found
}
