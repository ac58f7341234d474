package node

import (
	"context"
	"slices"
	"strings"

	"github.com/csi-addons/node-healer/internal/ops"
	"github.com/csi-addons/node-healer/internal/worker"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/facts/layout"
)

// maxAsked bounds the files of kubelet's that one worker call reads, maxPublished the
// names of pods and volumes.
const (
	maxAsked     = 512
	maxPublished = 1 << 14
)

// Volumes returns all paths of this node's volumes: what is mounted at kubelet's paths,
// and what pods have there and is not mounted. What is staged is only found while it is
// mounted: kubelet keeps the directories of volumes that are on their way out. No volume
// is touched. With a facts.UnlistedError the rest is returned.
func (n *Node) Volumes(ctx context.Context) ([]facts.VolumePath, error) {
	table, err := n.Topology()
	if err != nil {
		return nil, err
	}
	asks, unlisted, err := n.unmounted(ctx, table)
	if err != nil {
		return nil, err
	}
	found, torn, err := n.named(ctx, append(asks, n.mounted(table)...))
	if err != nil {
		return nil, err
	}
	return found, unread(append(unlisted, torn...))
}

// mounted returns what is mounted at kubelet's paths for volumes, each path once.
func (n *Node) mounted(table Table) (asks []PathQuery) {
	stacked := map[string]bool{}
	for _, m := range n.volumeMounts(table) {
		if !stacked[m.Path] {
			asks = append(asks, PathQuery{Path: m.Path, VolData: n.kubelet.Layout(m.Path).VolData, Mounted: true})
		}
		stacked[m.Path] = true
	}
	return asks
}

// named returns the paths at which kubelet's files name a volume, and those whose file could not be read.
func (n *Node) named(ctx context.Context, asks []PathQuery) (found []facts.VolumePath, torn []ops.UnreadPath, err error) {
	for some := range slices.Chunk(asks, maxAsked) {
		in, err := n.inspectPaths(ctx, some, false)
		if err != nil {
			return nil, nil, err
		}
		for _, ask := range some {
			info := in.Paths[ask.Path]
			if info.VolDataErr != nil && !info.Missing() {
				torn = append(torn, ops.UnreadPath{Path: ask.Path, Why: "vol_data.json: " + info.VolDataErr.Error()})
			}
			if info.VolData == nil || info.Missing() {
				continue
			}
			l := n.kubelet.Layout(ask.Path)
			p := facts.VolumePath{VolData: *info.VolData, Path: ask.Path, Staging: l.Kind == layout.Staging || l.Kind == layout.BlockStaging, Mounted: ask.Mounted, PodUID: l.PodUID}
			if p.Lifecycle != "Ephemeral" { // else the directory has the name that the pod gave to the volume
				p.PV = l.PV
			}
			found = append(found, p)
		}
	}
	return found, torn, nil
}

// unread returns nil for none.
func unread(paths []ops.UnreadPath) error {
	if len(paths) == 0 {
		return nil
	}
	slices.SortFunc(paths, func(a, b ops.UnreadPath) int { return strings.Compare(a.Path, b.Path) })
	e := &facts.UnlistedError{Why: paths[0].Why}
	for _, u := range paths {
		e.Paths = append(e.Paths, u.Path)
	}
	return e
}

// unmounted returns the paths of pods' volumes at which nothing is mounted. Where directories are
// unread there may be more.
func (n *Node) unmounted(ctx context.Context, table Table) (asks []PathQuery, unread []ops.UnreadPath, err error) {
	q := ops.PublishedQuery{Max: maxPublished, Patterns: []string{
		n.kubelet.Target(ops.AnyName, ops.AnyName), n.kubelet.BlockTarget(ops.AnyName, ops.AnyName),
	}}
	var published ops.PublishedAnswer
	disk := storageUnder(table, n.kubelet.Pods())
	disk.root = "paths" // as for all that is asked of kubelet's own disk
	err = n.probes.unlessStuck(disk, func() (err error) {
		published, err = worker.CallWithin(ctx, n.cfg.ProbeTimeout, n.cfg.Pool, ops.Published, q)
		return err
	})
	for _, at := range published.Paths {
		if l := n.kubelet.Layout(at); (l.Kind == layout.Pod || l.Kind == layout.Block) && len(table.Stack(at)) == 0 {
			asks = append(asks, PathQuery{Path: at, VolData: l.VolData})
		}
	}
	return asks, published.Unread, err
}

// VolumeMounts returns what is mounted at kubelet's paths for volumes, by the kernel's
// mount table alone.
func (n *Node) VolumeMounts() ([]facts.Mount, error) {
	table, err := n.Topology()
	if err != nil {
		return nil, err
	}
	return n.volumeMounts(table), nil
}

func (n *Node) volumeMounts(table Table) (found []facts.Mount) {
	for _, m := range table.Mounts() {
		switch n.kubelet.Layout(m.Path).Kind {
		case layout.Pod, layout.Block, layout.Staging, layout.BlockStaging:
			found = append(found, m)
		}
	}
	return found
}
