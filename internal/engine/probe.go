package engine

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/csi-addons/node-healer/internal/node"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// group is what one worker call inspects: one superblock and the mount points on it.
type group struct {
	key         groupKey
	mountPoints []int
	probe       *facts.Mount
	// above is true when the superblock is known not to answer.
	above bool
	seen  node.Inspection
	err   error
}

type groupKey struct {
	dev  facts.Dev
	root string
	// mount is set where each mount has an answer of its own.
	mount int
}

// inspect inspects all mount points that were not inspected yet: one call for each
// superblock, side by side, so that one that hangs delays no answer of another.
func (o *observation) inspect(ctx context.Context) error {
	if o.moved {
		return errMoved
	}
	if err := o.lock.current(); err != nil {
		return err // no check probes a volume while it is healed
	}
	groups := o.groups()
	var asking sync.WaitGroup
	for _, g := range groups {
		asking.Go(func() { o.ask(ctx, g) })
	}
	asking.Wait()
	for _, g := range groups {
		if g.err != nil {
			return healer.Failed("inspect the volume", g.err)
		}
		if g.seen.Changed {
			return errMoved
		}
		o.take(g)
	}
	return nil
}

func (o *observation) groups() []*group {
	var list []*group
	for i := range o.c.MountPoints {
		p := &o.c.MountPoints[i]
		if p.Inspect.Inspected {
			continue
		}
		var k groupKey
		top, mounted := p.Top()
		if mounted {
			k.dev = top.Dev
			if top.MayBeNode() {
				k.root = top.Root // every device node is a storage of its own
			}
			if facts.IsNFS(top.FSType) {
				k.mount = top.OldID
			}
		}
		at := slices.IndexFunc(list, func(g *group) bool { return g.key == k })
		if at < 0 {
			sb, probed := o.c.Superblocks[top.Dev]
			g := &group{key: k, above: sb.Answer.TimedOut}
			if mounted && (!probed || k.mount != 0 && !g.above) {
				g.probe = &p.Stack[0]
			}
			list, at = append(list, g), len(list)
		} else if g := list[at]; g.probe != nil && g.probe.Placeholder() && !top.Placeholder() {
			g.probe = &p.Stack[0] // through a placeholder no device can be opened
		}
		list[at].mountPoints = append(list[at].mountPoints, i)
	}
	return list
}

func (o *observation) ask(ctx context.Context, g *group) {
	defer func() {
		if p := recover(); p != nil { // in a goroutine of its own it would end the server
			g.err = fmt.Errorf("internal error: a panic with a value of type %T", p)
		}
	}()
	q := node.InspectQuery{Probe: g.probe, Routine: o.c.Volume.Routine}
	for _, i := range g.mountPoints {
		p := o.c.MountPoints[i]
		q.Paths = append(q.Paths, node.PathQuery{Path: p.Path, VolData: p.Layout.VolData, Mounted: p.Mounted(), Bare: p.Role == healer.RoleTarget && len(p.Stack) == 0, ParentOnly: g.above})
	}
	if g.seen, g.err = o.node.Inspect(ctx, q); g.err == nil && g.probe != nil {
		g.err = explainInspection(g.probe.Path, g.seen.Answer)
	}
}

// take puts the answer of a group of mount points into the case.
func (o *observation) take(g *group) {
	for _, i := range g.mountPoints {
		p := &o.c.MountPoints[i]
		p.Inspect = g.seen.Paths[p.Path]
		// A mount point with a mount is not inspected by its path. It shows the root that
		// was probed if its mount shows the same directory of the superblock.
		if p.Mounted() && g.probe != nil && p.Stack[0].Root == g.probe.Root {
			p.Inspect.Kind = g.seen.Kind
			if g.seen.Kind == facts.KindBlock {
				p.Inspect.Rdev = g.seen.Rdev
			}
		}
	}
	if g.probe != nil {
		// The lowest of those seen counts for all: the device number of a superblock that was
		// probed first may be another's by the time that the last one answers.
		if newest := g.seen.Newest; newest != 0 && (o.c.Newest == 0 || newest < o.c.Newest) {
			o.c.Newest = newest
		}
		sb := o.superblock(*g.probe, g.seen)
		if g.key.mount != 0 {
			sb = o.takeOwn(g, sb)
		}
		o.c.Superblocks[sb.Dev] = sb
	}
}

// takeOwn puts into the case what one of several mounts of a superblock (NFS) answered. The case
// has for the superblock what the staged mount says, and that it answers if any mount of it does.
func (o *observation) takeOwn(g *group, sb healer.Superblock) healer.Superblock {
	staged := false
	for _, i := range g.mountPoints {
		o.c.MountPoints[i].Own = g.seen.Answer
		staged = staged || o.c.MountPoints[i].Role == healer.RoleStaging
	}
	other, known := o.c.Superblocks[sb.Dev]
	if !known {
		return sb
	}
	if !staged {
		sb, other = other, sb
	}
	if !sb.Works() && other.Works() {
		sb.Answer, sb.Kind, sb.Space = other.Answer, other.Kind, other.Space
	}
	return sb
}

// superblock joins the facts of a mount with what the storage answered.
func (o *observation) superblock(m facts.Mount, s node.Inspection) healer.Superblock {
	sb := healer.StateOf(m)
	sb.Kind, sb.Answer, sb.Space, sb.Opened = s.Kind, s.Answer, s.Space, s.Device
	sb.ReadOnly = sb.ReadOnly || s.ReadOnly
	var dev facts.Dev
	switch {
	case s.Kind == facts.KindBlock:
		sb.Dev, dev = s.Rdev, s.Rdev
	case m.OnDevice():
		dev = m.Dev
	default:
		dev = s.Rdev
	}
	switch {
	case !dev.Zero():
		d := o.node.BlockDevice(dev)
		d.Identity.FilesystemUUID = s.UUID
		sb.Device = &d
		sb.Errors = o.node.FilesystemErrors(m.FSType, d.Name)
	case s.UUID != "" && m.Dev.Major == 0:
		// The node of the disk cannot be seen; the UUID of the filesystem still identifies it.
		sb.Device = &facts.BlockDevice{Name: m.Source, Missing: s.SourceGone, Identity: facts.Identity{FilesystemUUID: s.UUID}}
	}
	if m.FSType == "overlay" {
		sb.Upper = o.upper(m)
	}
	return sb
}

// upper returns the facts of the filesystem that an overlay writes to: nil when it
// is mounted where this namespace does not see it.
func (o *observation) upper(m facts.Mount) *healer.Superblock {
	for _, option := range m.SuperOptions {
		dir, is := strings.CutPrefix(option, "upperdir=")
		if !is || !path.IsAbs(dir) {
			continue
		}
		parent, found := o.table.ParentMount(path.Clean(dir))
		stack := o.stack(parent.Path)
		// What was mounted after the overlay is not what it writes to.
		if found && len(stack) > 0 && stack[0].Same(parent) && (m.ID == 0 || stack[0].ID <= m.ID) {
			sb := healer.StateOf(stack[0])
			return &sb
		}
	}
	return nil
}
