package healer

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"

	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/pkg/host"
)

// maxObservations bounds how often a moving mount table is read anew.
const maxObservations = 4

// errMoved says that the mount table changed while it was looked at.
var errMoved = errors.New("the mounts of the volume changed while they were looked at")

// observe finds the volume's mount points and asks each of its superblocks once. An
// absent mount is believed only when the mount table, read anew, shows the same.
func (e *Engine) observe(ctx context.Context, v Volume, t *volumeLock) (Case, error) {
	doubted := map[string]bool{}
	err := errMoved
	for pass := range maxObservations {
		var o *observation
		if o, err = e.newObservation(v, pass > 0); err != nil {
			return Case{}, err
		}
		o.volumeLock = t
		if err = o.run(ctx, t); errors.Is(err, errMoved) {
			continue
		} else if err != nil {
			return Case{}, err
		}
		if !doubtAbsence(o.c, doubted) {
			return o.c, nil
		}
		err = errMoved
	}
	return Case{}, Failed("observe the volume", err)
}

// doubtAbsence is true when a mount point is empty that was not yet seen empty before.
// A staging path on which nothing is expected is not doubted: many drivers stage
// nothing, and none of their checks should cost two.
func doubtAbsence(c Case, doubted map[string]bool) bool {
	fresh := false
	for _, p := range c.MountPoints {
		usual := p.Role == RoleStaging && p.Path != c.Volume.Path && c.Record != nil && p.Want == nil
		if len(p.Stack) == 0 && !usual && !doubted[p.Path] {
			doubted[p.Path] = true
			fresh = true
		}
	}
	return fresh
}

// observation is one pass over a volume.
type observation struct {
	engine *Engine
	node   Node
	table  host.Table
	// bare is true while the table only serves to find mounts.
	bare       bool
	volumeLock *volumeLock
	// moved is true once a mount was not found where the table has it.
	moved bool
	c     Case
}

func (e *Engine) newObservation(v Volume, anew bool) (*observation, error) {
	read := e.cfg.Node.Topology
	if anew {
		read = e.cfg.Node.Mounts
	}
	table, err := read()
	if err != nil {
		return nil, Failed("read the mount table", err)
	}
	v.Path = e.cfg.Node.RealPath(v.Path)
	if v.StagingPath != "" {
		v.StagingPath = e.cfg.Node.RealPath(v.StagingPath)
	} else if base := e.cfg.Node.Kubelet().Layout(v.Path).Base; base != "" && len(table.Stack(base)) > 0 {
		v.StagingPath = base // the path lies in or on what is staged there
	}
	return &observation{engine: e, node: e.cfg.Node, table: table, bare: !anew, c: Case{
		Volume:      v,
		BootID:      e.cfg.Node.BootID(),
		began:       host.SinceBoot(),
		BootTime:    e.cfg.Node.BootTime(),
		Superblocks: map[host.Dev]host.Superblock{},
	}}, nil
}

func (o *observation) run(ctx context.Context, t *volumeLock) error {
	v := o.c.Volume
	if v.Path != v.StagingPath {
		o.add(o.roleOf(v.Path), v.Path, true)
	}
	if v.StagingPath != "" {
		o.add(RoleStaging, v.StagingPath, true)
	}
	if err := o.look(ctx); err != nil {
		return err
	}
	if err := o.follow(ctx); err != nil {
		return err
	}
	if err := o.accept(); err != nil {
		return err
	}
	if err := t.add(volumeKey(o.c.Driver, v.ID)); err != nil {
		return err
	}
	record, err := o.engine.cfg.Records.Load(o.c.Driver, v.ID)
	if err != nil {
		// Without a record less can be healed, and nothing wrong is done.
		klog.FromContext(ctx).Error(err, "Cannot read the volume's record", "driver", o.c.Driver)
	}
	o.c.Record = record
	if record != nil && record.BootID == o.c.BootID {
		o.c.lastSeen = min(o.c.began, max(o.engine.scanned.get(volumeKey(o.c.Driver, v.ID)).healthy, record.LastSeen.Sub(o.c.BootTime)))
	}
	if err := o.others(ctx); err != nil {
		return err
	}
	for i := range o.c.MountPoints {
		o.c.MountPoints[i].Want = record.MountPoint(o.c.MountPoints[i].Path)
	}
	if o.moved {
		return errMoved
	}
	if err := o.containers(ctx); err != nil {
		return err
	}
	return o.writeCheck(ctx)
}

// roleOf tells a staging path that a caller named as volume_path from a
// published one. What a driver mounts below a staged mount is not that mount.
func (o *observation) roleOf(path string) Role {
	l := o.node.Kubelet().Layout(path)
	staging := o.c.Volume.StagingPath
	below := beneath(path, staging) && len(o.table.Stack(staging)) > 0
	if !below && (l.Kind == host.LayoutStaging || l.Kind == host.LayoutBlockStaging) {
		return RoleStaging
	}
	return RoleTarget
}

func (o *observation) add(role Role, at string, named bool) {
	if _, known := o.c.MountPoint(at); known {
		return
	}
	layout := o.node.Kubelet().Layout(at)
	if layout.PodUID != "" {
		role = RoleTarget // whatever the caller calls it
	}
	p := MountPoint{
		Role:   role,
		Path:   at,
		Named:  named,
		PodUID: layout.PodUID,
		Layout: layout,
		Stack:  o.stack(at),
	}
	if parentMount, inContainer := o.inContainer(at); inContainer && len(p.Stack) == 0 {
		p.Role, p.Stack = RoleStaging, o.stack(parentMount.Path)
	}
	o.c.MountPoints = append(o.c.MountPoints, p)
}

// stack gives the mounts on a path as they are now.
func (o *observation) stack(path string) []host.Mount {
	stack := o.table.Stack(path)
	if !o.bare {
		return stack
	}
	return o.fresh(stack)
}

// fresh gives mounts as they are now.
func (o *observation) fresh(mounts []host.Mount) []host.Mount {
	if len(mounts) == 0 {
		return nil
	}
	mounts, there := o.node.Refresh(mounts)
	o.moved = o.moved || !there
	return mounts
}

// inside finds the staged mount that a path lies in: some drivers hand out a
// directory of what they staged.
func (o *observation) inContainer(path string) (host.Mount, bool) {
	staging := o.c.Volume.StagingPath
	if !beneath(path, staging) {
		return host.Mount{}, false
	}
	parentMount, found := o.table.ParentMount(path)
	return parentMount, found && (parentMount.Path == staging || beneath(parentMount.Path, staging))
}

// beneath is true for a path inside a directory; dir may be empty.
func beneath(p, dir string) bool {
	rest, inContainer := strings.CutPrefix(p, dir)
	return inContainer && dir != "" && rest != "" && rest[0] == '/'
}

// group is what one worker call asks: one superblock and the mount points on it.
type group struct {
	key         groupKey
	mountPoints []int
	probe       *host.Mount
	// above is true when the superblock is known not to answer.
	above bool
	sight host.Inspection
	err   error
}

// look asks about all mount points not yet looked at: one call for each superblock,
// side by side, so that one that hangs keeps no answer of another back.
func (o *observation) look(ctx context.Context) error {
	if o.moved {
		return errMoved
	}
	if err := o.volumeLock.current(); err != nil {
		return err // nobody is at the volume beside a heal
	}
	groups := o.groups()
	if len(groups) == 1 {
		o.ask(ctx, groups[0])
	} else {
		var wg sync.WaitGroup
		for _, g := range groups {
			wg.Go(func() { o.ask(ctx, g) })
		}
		wg.Wait()
	}
	for _, g := range groups {
		if g.err != nil {
			return Failed("look at the volume", g.err)
		}
		if g.sight.Changed {
			return errMoved
		}
		o.take(g)
	}
	return nil
}

type groupKey struct {
	dev  host.Dev
	root string
	// mount is set where each mount has an answer of its own.
	mount int
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
			if host.IsNFS(top.FSType) {
				k.mount = top.OldID
			}
		}
		at := slices.IndexFunc(list, func(g *group) bool { return g.key == k })
		if at < 0 {
			sb, probed := o.c.Superblocks[top.Dev]
			g := &group{key: k, above: sb.Answer.Silent}
			if mounted && (!probed || k.mount != 0 && !g.above) {
				g.probe = &p.Stack[0]
			}
			list, at = append(list, g), len(list)
		} else if g := list[at]; g.probe != nil && g.probe.Placeholder() && !top.Placeholder() {
			g.probe = &p.Stack[0] // through an placeholder no device can be opened
		}
		list[at].mountPoints = append(list[at].mountPoints, i)
	}
	return list
}

func (o *observation) ask(ctx context.Context, g *group) {
	defer func() {
		if p := recover(); p != nil { // it would end the server from here
			g.err = fmt.Errorf("internal error: a panic with a value of type %T", p)
		}
	}()
	q := host.InspectQuery{Probe: g.probe, ParentsOnly: g.above}
	for _, i := range g.mountPoints {
		p := o.c.MountPoints[i]
		q.Paths = append(q.Paths, host.PathQuery{Path: p.Path, VolData: p.Layout.VolData, Mounted: p.Mounted()})
	}
	if g.sight, g.err = o.node.Inspect(ctx, q); g.err == nil && g.probe != nil {
		g.err = explainLook(g.probe.Path, g.sight.Answer)
	}
}

// take notes a group's answer in the case.
func (o *observation) take(g *group) {
	for _, i := range g.mountPoints {
		p := &o.c.MountPoints[i]
		p.Inspect = g.sight.Paths[p.Path]
		// What is mounted need not be looked at by path: it shows what the probe
		// met, if it shows the same directory.
		if p.Mounted() && g.probe != nil && p.Stack[0].Root == g.probe.Root {
			p.Inspect.Kind = g.sight.Kind
			if g.sight.Kind == host.KindBlock {
				p.Inspect.Rdev = g.sight.Rdev
			}
		}
	}
	if g.probe != nil {
		o.c.Newest = max(o.c.Newest, g.sight.NewestMountID)
		sb := o.superblock(*g.probe, g.sight)
		if g.key.mount != 0 {
			sb = o.takeOwn(g, sb)
		}
		o.c.Superblocks[sb.Dev] = sb
	}
}

// takeOwn notes what one of several mounts of a superblock answered. Together they
// say what the staged one is, and that it answers as long as any of them does.
func (o *observation) takeOwn(g *group, sb host.Superblock) host.Superblock {
	staged := false
	for _, i := range g.mountPoints {
		o.c.MountPoints[i].Own = g.sight.Answer
		staged = staged || o.c.MountPoints[i].Role == RoleStaging
	}
	other, known := o.c.Superblocks[sb.Dev]
	if !known {
		return sb
	}
	if !staged {
		sb, other = other, sb
	}
	if !works(sb) && works(other) {
		sb.Answer, sb.Kind, sb.Space = other.Answer, other.Kind, other.Space
	}
	return sb
}

// superblock joins the facts of a mount with what the storage answered.
func (o *observation) superblock(m host.Mount, s host.Inspection) host.Superblock {
	sb := host.StateOf(m)
	sb.Kind, sb.Answer, sb.Space, sb.Opened = s.Kind, s.Answer, s.Space, s.Opened
	sb.ReadOnly, sb.Media = sb.ReadOnly || s.ReadOnly, s.Media
	var dev host.Dev
	switch {
	case s.Kind == host.KindBlock:
		sb.Dev, dev = s.Rdev, s.Rdev
	case m.Dev.Major != 0:
		dev = m.Dev
	default:
		dev = s.Rdev
	}
	switch {
	case !dev.Zero():
		d := o.node.BlockDevice(dev, s.Opened)
		d.Identity.FilesystemUUID = s.UUID
		sb.Device = &d
		sb.Errors = o.node.FilesystemErrors(m.FSType, d.Name)
	case s.UUID != "":
		// A filesystem of a disk whose node cannot be seen: it still says who
		// it is.
		sb.Device = &host.BlockDevice{Name: m.Source, Missing: s.SourceGone, Identity: host.Identity{FilesystemUUID: s.UUID}}
	}
	sb.Btrfs = o.node.BtrfsErrors(m.FSType, s.UUID)
	if m.FSType == "overlay" {
		sb.Upper = o.upper(m)
	}
	return sb
}

// upper gives the facts of the filesystem that an overlay writes to: nil when it
// is mounted where this namespace does not see it.
func (o *observation) upper(m host.Mount) *host.Superblock {
	for _, option := range m.SuperOptions {
		dir, is := strings.CutPrefix(option, "upperdir=")
		if !is || !path.IsAbs(dir) {
			continue
		}
		parentMount, found := o.table.ParentMount(path.Clean(dir))
		stack := o.stack(parentMount.Path)
		// What was mounted after the overlay is not what it writes to.
		if found && len(stack) > 0 && stack[0].Same(parentMount) && (m.ID == 0 || stack[0].ID <= m.ID) {
			sb := host.StateOf(stack[0])
			return &sb
		}
	}
	return nil
}

// follow replaces the one symbolic link that is kubelet's own, from a pod's
// directory to its block volume, by its target.
func (o *observation) follow(ctx context.Context) error {
	p := o.c.MountPoints[0]
	if p.Inspect.Kind != host.KindSymlink {
		return nil
	}
	kubelet := o.node.Kubelet()
	from, target := kubelet.Layout(p.Path), o.node.RealPath(p.Inspect.Link)
	to := kubelet.Layout(target)
	if from.Kind != host.LayoutPodBlock || to.Kind != host.LayoutBlock || to.PV != from.PV || to.PodUID != from.PodUID {
		return Invalid("volume_path", "is a symbolic link, and not kubelet's own one from a pod to its block volume")
	}
	o.c.Volume.Path = target
	o.c.MountPoints = slices.Delete(o.c.MountPoints, 0, 1)
	o.add(RoleTarget, target, true)
	last := len(o.c.MountPoints) - 1
	o.c.MountPoints[0], o.c.MountPoints[last] = o.c.MountPoints[last], o.c.MountPoints[0]
	return o.look(ctx)
}
