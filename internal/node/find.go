package node

import (
	"context"
	"path"
	"slices"
	"strings"

	"github.com/csi-addons/node-healer/internal/ops"
	"github.com/csi-addons/node-healer/internal/worker"
	"github.com/csi-addons/node-healer/pkg/facts/layout"
)

// maxAsked bounds the files of kubelet's that one worker call reads, maxPublished the
// names of pods and volumes.
const (
	maxAsked     = 512
	maxPublished = 1 << 14
)

// Find returns a path of a driver's volume on this node, empty when kubelet has
// none: what is staged, or else what is published, or else where it should be and
// lost its mount, or else the staging directory that kubelet made for it. No volume is
// touched, only kubelet's own files are read, and nothing is taken from a file but
// which volume it names. Where nothing is staged that costs one small file for each
// volume on the node, so callers that know a path name it.
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
	found, err := n.findNamed(ctx, n.mounted(table), driver, handle)
	if found != "" || err != nil {
		return found, err
	}
	lost, unread, err := n.unmounted(ctx, table, "")
	if err != nil {
		return "", err
	}
	found, err = n.findNamed(ctx, lost, driver, handle)
	if found != "" || err != nil {
		return found, err
	}
	s, err := n.inspectPaths(ctx, []PathQuery{{Path: base}}, false)
	switch {
	case err != nil:
		return "", err
	case s.Paths[base].Missing():
		return "", unlisted(unread)
	}
	return base, nil
}

// mounted returns all that is mounted at kubelet's paths.
func (n *Node) mounted(table Table) (asks []PathQuery) {
	for _, m := range table.Mounts() {
		switch l := n.kubelet.Layout(m.Path); l.Kind {
		case layout.Pod, layout.Block, layout.BlockStaging:
			asks = append(asks, PathQuery{Path: m.Path, VolData: l.VolData, Mounted: true})
		}
	}
	return asks
}

// unmounted returns the paths of pods' volumes at which nothing is mounted; devices is
// kubelet's directory for raw block volumes, empty to leave them out. Where directories are
// unread there may be more.
func (n *Node) unmounted(ctx context.Context, table Table, devices string) (asks []PathQuery, unread []ops.UnreadPath, err error) {
	pods := n.kubelet.Pods()
	var published ops.PublishedAnswer
	disk := storageUnder(table, pods)
	disk.root = "paths" // as for all that is asked of kubelet's own disk
	err = n.probes.unlessStuck(disk, func() (err error) {
		published, err = worker.CallWithin(ctx, n.cfg.ProbeTimeout, n.cfg.Pool, ops.Published, ops.PublishedQuery{Pods: pods, Volumes: layout.PodVolumes, Devices: devices, Max: maxPublished})
		return err
	})
	for _, v := range published.Volumes {
		at := n.kubelet.Target(v.PodUID, v.PV)
		if v.Block {
			at = n.kubelet.BlockTarget(v.PodUID, v.PV)
		}
		if l := n.kubelet.Layout(at); (l.Kind == layout.Pod || l.Kind == layout.Block) && len(table.Stack(at)) == 0 {
			asks = append(asks, PathQuery{Path: at, VolData: l.VolData})
		}
	}
	return asks, published.Unread, err
}

// findNamed returns the first path, by name, that exists and for which kubelet's file
// names the volume: asking twice finds the same.
func (n *Node) findNamed(ctx context.Context, asks []PathQuery, driver, handle string) (string, error) {
	slices.SortFunc(asks, func(a, b PathQuery) int { return strings.Compare(a.Path, b.Path) })
	for some := range slices.Chunk(asks, maxAsked) {
		s, err := n.inspectPaths(ctx, some, false)
		if err != nil {
			return "", err
		}
		for _, ask := range some {
			l := s.Paths[ask.Path]
			if d := l.VolData; d != nil && d.DriverName == driver && d.VolumeHandle == handle && !l.Missing() {
				return ask.Path, nil
			}
		}
	}
	return "", nil
}
