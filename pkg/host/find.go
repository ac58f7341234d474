package host

import (
	"context"
	"path"
	"slices"
	"strings"
)

// maxAsked bounds how many of kubelet's files one worker call reads.
const maxAsked = 512

// Find gives a path of a driver's volume on this node, empty when kubelet has
// none: what is staged, or else what is published, or else the staging directory
// that kubelet made for it. No volume is touched, only kubelet's own files are
// read. Where nothing is staged that costs one small file for each volume on the
// node, so whoever knows a path names it.
func (n *Node) Find(ctx context.Context, driver, handle string) (string, error) {
	table, err := n.Topology()
	if err != nil {
		return "", err
	}
	base := n.kubelet.Staging(driver, handle)
	staged := slices.Concat(
		table.InDirectory(path.Base(path.Dir(base))),
		table.InDirectory(path.Base(base)), // as ceph-csi does: a directory named after the volume
	)
	for _, m := range staged {
		if m.Path == base || strings.HasPrefix(m.Path, base+"/") {
			return m.Path, nil
		}
	}
	found, err := n.findPublished(ctx, table, driver, handle)
	if found != "" || err != nil {
		return found, err
	}
	s, err := n.lookAt(ctx, Question{Paths: []Ask{{Path: base}}})
	if err != nil || s.Paths[base].Missing() {
		return "", err
	}
	return base, nil
}

// findPublished reads kubelet's files for all that is mounted at its paths. A
// volume's first pod by name counts, so that asking twice finds the same.
func (n *Node) findPublished(ctx context.Context, table Table, driver, handle string) (string, error) {
	var asks []Ask
	for _, m := range table.Mounts() {
		switch l := n.kubelet.Layout(m.Path); l.Kind {
		case LayoutPod, LayoutBlock, LayoutBlockStaging:
			asks = append(asks, Ask{Path: m.Path, VolData: l.VolData, Mounted: true})
		}
	}
	slices.SortFunc(asks, func(a, b Ask) int { return strings.Compare(a.Path, b.Path) })
	for some := range slices.Chunk(asks, maxAsked) {
		s, err := n.lookAt(ctx, Question{Paths: some})
		if err != nil {
			return "", err
		}
		for _, ask := range some {
			if d := s.Paths[ask.Path].VolData; d != nil && d.DriverName == driver && d.VolumeHandle == handle {
				return ask.Path, nil
			}
		}
	}
	return "", nil
}
