package node

import (
	"context"
	"slices"
	"strings"

	"github.com/csi-addons/node-healer/internal/ops"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/facts/layout"
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
	asks, unread, err := n.unmounted(ctx, table, n.kubelet.BlockTargets())
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
	var found []facts.VolumePath
	for some := range slices.Chunk(asks, maxAsked) {
		in, err := n.inspectPaths(ctx, some, false)
		if err != nil {
			return nil, err
		}
		for _, ask := range some {
			info := in.Paths[ask.Path]
			if info.VolDataErr != nil && !info.Missing() {
				unread = append(unread, ops.UnreadPath{Path: ask.Path, Why: "vol_data.json: " + info.VolDataErr.Error()})
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
	return found, unlisted(unread)
}

// unlisted returns nil for none.
func unlisted(unread []ops.UnreadPath) error {
	if len(unread) == 0 {
		return nil
	}
	slices.SortFunc(unread, func(a, b ops.UnreadPath) int { return strings.Compare(a.Path, b.Path) })
	e := &facts.UnlistedError{Why: unread[0].Why}
	for _, u := range unread {
		e.Paths = append(e.Paths, u.Path)
	}
	return e
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
