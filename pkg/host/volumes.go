package host

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/csi-addons/node-healer/internal/ops"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/facts/layout"
)

// VolumePath is a path at which kubelet has a volume, and the volume that kubelet's file
// for the path names.
type VolumePath struct {
	facts.VolData
	Path string
	// Staging is true for a path at which the volume is staged, and not published.
	Staging bool
}

// Volumes returns all paths of this node's volumes: what is mounted at kubelet's paths,
// and what pods have there and is not mounted. What is staged is only found while it is
// mounted: kubelet keeps the directories of volumes that are on their way out. No volume
// is touched. With an UnlistedError the rest is returned.
func (n *Node) Volumes(ctx context.Context) ([]VolumePath, error) {
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
	var found []VolumePath
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
			kind := n.kubelet.Layout(ask.Path).Kind
			found = append(found, VolumePath{*info.VolData, ask.Path, kind == layout.Staging || kind == layout.BlockStaging})
		}
	}
	return found, unlisted(unread)
}

// UnlistedError says that there may be volumes besides those that were found: files or
// directories of kubelet's could not be read.
type UnlistedError struct {
	// Paths are where, and Why is why the first could not be read. They are sorted, so that
	// an error that stays has the same text.
	Paths []string
	Why   string
}

// unlisted returns nil for none.
func unlisted(unread []ops.UnreadPath) error {
	if len(unread) == 0 {
		return nil
	}
	slices.SortFunc(unread, func(a, b ops.UnreadPath) int { return strings.Compare(a.Path, b.Path) })
	e := &UnlistedError{Why: unread[0].Why}
	for _, u := range unread {
		e.Paths = append(e.Paths, u.Path)
	}
	return e
}

// Error implements error.
func (e *UnlistedError) Error() string {
	text := fmt.Sprintf("cannot read what kubelet has at %s: %s", e.Paths[0], e.Why)
	switch more := len(e.Paths) - 1; {
	case more == 1:
		text += ", and at 1 more path"
	case more > 1:
		text += fmt.Sprintf(", and at %d more paths", more)
	}
	return text
}

// Hides reports whether there may be a volume at a path that was not found.
func (e *UnlistedError) Hides(path string) bool {
	return slices.ContainsFunc(e.Paths, func(p string) bool { return facts.Beneath(p, path) })
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

func (n *Node) volumeMounts(table facts.Table) (found []facts.Mount) {
	for _, m := range table.Mounts() {
		switch n.kubelet.Layout(m.Path).Kind {
		case layout.Pod, layout.Block, layout.Staging, layout.BlockStaging:
			found = append(found, m)
		}
	}
	return found
}
