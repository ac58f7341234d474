package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/internal/node"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/facts/layout"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// maxObservations bounds how often a moving mount table is read anew.
const maxObservations = 4

// errMoved says that the mount table changed during an observation: what was probed may not be
// what is mounted.
var errMoved = errors.New("the mount table kept changing")

// observe finds the volume's mount points and probes each of its superblocks once. A mount point
// counts as empty only when the mount table, read anew, shows the same: the table in memory knows
// a mount by the path of before where a directory above it was renamed.
func (e *Engine) observe(ctx context.Context, v healer.Volume, lock *volumeLock) (healer.Case, error) {
	seenEmpty := map[string]bool{}
	for pass := range maxObservations {
		o := &observation{engine: e, node: e.cfg.Node, lock: lock, topology: pass == 0}
		err := o.run(ctx, v)
		if err == nil && !o.newlyEmpty(seenEmpty) {
			return o.c, nil
		}
		if err != nil && !errors.Is(err, errMoved) {
			return healer.Case{}, err
		}
	}
	return healer.Case{}, healer.Failed("observe the volume", fmt.Errorf("%w (%d attempts)", errMoved, maxObservations))
}

// observation is one pass over a volume, with the mount table that it goes by.
type observation struct {
	engine *Engine
	node   Node
	lock   *volumeLock
	table  node.Table
	// topology is true while the table only serves to find mounts.
	topology bool
	// moved is true once a mount was not found where the table has it.
	moved bool
	// known is what earlier checks of the volume found out.
	known scannedVolume
	c     healer.Case
}

func (o *observation) run(ctx context.Context, v healer.Volume) (err error) {
	began := node.SinceBoot() // before the mount table is read: what is saved from here on may be newer
	read := o.node.Mounts
	if o.topology {
		read = o.node.Topology
	}
	if o.table, err = read(); err != nil {
		return healer.Failed("read the mount table", err)
	}
	v.Path = o.node.RealPath(v.Path)
	if v.StagingPath != "" {
		v.StagingPath = o.node.RealPath(v.StagingPath)
	} else if base := o.node.Kubelet().Layout(v.Path).Base; base != "" && len(o.table.Stack(base)) > 0 {
		v.StagingPath = base // the path is that of the staged mount, or below it
	}
	o.c = healer.Case{
		Volume:      v,
		BootID:      o.node.BootID(),
		Began:       began,
		BootTime:    o.node.BootTime(),
		Superblocks: map[facts.Dev]healer.Superblock{},
	}
	if v.Path != v.StagingPath {
		o.add(o.roleOf(v.Path), v.Path, true)
	}
	if v.StagingPath != "" {
		o.add(healer.RoleStaging, v.StagingPath, true)
	}
	if err := o.inspect(ctx); err != nil {
		return err
	}
	if err := o.followSymlink(ctx); err != nil {
		return err
	}
	if err := o.accept(); err != nil {
		return err
	}
	if err := o.lock.add(o.volumeKey()); err != nil {
		return err
	}
	o.loadRecord(ctx)
	if err := o.otherMountPoints(ctx); err != nil {
		return err
	}
	if err := o.wanted(ctx); err != nil {
		return err
	}
	for i := range o.c.MountPoints {
		p := &o.c.MountPoints[i]
		p.Want = o.c.Record.MountPoint(p.Path)
	}
	if o.moved {
		return errMoved
	}
	if err := o.containers(ctx); err != nil {
		return err
	}
	if err := o.writeCheck(ctx); err != nil {
		return err
	}
	return o.lookUp(ctx)
}

func (o *observation) volumeKey() key { return volumeKey(o.c.Driver, o.c.Volume.ID) }

// remember changes what the next checks of the volume know.
func (o *observation) remember(change func(*scannedVolume)) {
	o.known = o.engine.scanned.change(o.volumeKey(), change)
}

func (o *observation) loadRecord(ctx context.Context) {
	o.known = o.engine.scanned.get(o.volumeKey()) // first: healthy is of this record, or an older one
	record, err := o.engine.read(o.c.Driver, o.c.Volume.ID)
	if err != nil {
		// Without a record less can be healed, and nothing wrong is done. This check saves none over the one that
		// is there, as if another had saved meanwhile: what is mounted now would be the volume from then on.
		klog.FromContext(ctx).Error(err, "Cannot read the volume's record", "driver", o.c.Driver)
		o.remember(func(v *scannedVolume) { v.saved = node.SinceBoot() })
	}
	o.c.Record = record
	o.c.WasLookedUp = o.known.lookedUp
	if o.c.RecordOfThisBoot() {
		o.c.LastSeen = min(o.c.Began, cmp.Or(o.known.healthy, record.LastSeen.Sub(o.c.BootTime))) // the wall clock may have been set since
	}
}

// roleOf tells a staging path that a caller named as volume_path from a target. A mount that a
// driver publishes below a staged mount is a target.
func (o *observation) roleOf(path string) healer.Role {
	l := o.node.Kubelet().Layout(path)
	staging := o.c.Volume.StagingPath
	below := facts.Beneath(staging, path) && len(o.table.Stack(staging)) > 0
	if !below && (l.Kind == layout.Staging || l.Kind == layout.BlockStaging) {
		return healer.RoleStaging
	}
	return healer.RoleTarget
}

func (o *observation) add(role healer.Role, at string, named bool) {
	if _, known := o.c.MountPoint(at); known {
		return
	}
	parsed := o.node.Kubelet().Layout(at)
	if parsed.PodUID != "" {
		role = healer.RoleTarget // whatever the caller calls it
	}
	p := healer.MountPoint{
		Role:   role,
		Path:   at,
		Named:  named,
		PodUID: parsed.PodUID,
		Layout: parsed,
		Stack:  o.stack(at),
	}
	if staging := o.c.Volume.StagingPath; len(p.Stack) == 0 && staging != "" {
		// Some drivers publish a directory of what they staged.
		if parent, found := o.table.ParentMount(at); found && facts.Beneath(staging, parent.Path) {
			p.Role, p.Stack = healer.RoleStaging, o.stack(parent.Path)
		}
	}
	o.c.MountPoints = append(o.c.MountPoints, p)
}

// stack returns the mounts on a path as they are now.
func (o *observation) stack(path string) []facts.Mount {
	stack := o.table.Stack(path)
	if !o.topology {
		return stack
	}
	return o.refresh(stack)
}

// refresh returns mounts as they are now.
func (o *observation) refresh(mounts []facts.Mount) []facts.Mount {
	if len(mounts) == 0 {
		return nil
	}
	mounts, there := o.node.Refresh(mounts)
	o.moved = o.moved || !there
	return mounts
}

// newlyEmpty reports whether this pass shows a mount point empty that no earlier pass did: the
// next pass reads the mount table anew. A staging path on which no mount is expected does not
// count: many drivers stage nothing, and their checks should not cost two passes.
func (o *observation) newlyEmpty(seen map[string]bool) (found bool) {
	for _, u := range o.c.Unjudged {
		if at := u.MountPoint.Path; !seen[at] {
			seen[at], found = true, true
		}
	}
	for _, p := range o.c.MountPoints {
		usual := p.Role == healer.RoleStaging && p.Path != o.c.Volume.Path && o.c.Record != nil && p.Want == nil
		if len(p.Stack) == 0 && !usual && !seen[p.Path] {
			seen[p.Path], found = true, true
		}
	}
	return found
}

// followSymlink replaces the one symbolic link that is kubelet's own, from a pod's
// directory to its block volume, by its target.
func (o *observation) followSymlink(ctx context.Context) error {
	p := o.c.MountPoints[0]
	if p.Inspect.Kind != facts.KindSymlink || insteadOfMount(p) != "" {
		return nil
	}
	kubelet := o.node.Kubelet()
	from, target := kubelet.Layout(p.Path), o.node.RealPath(p.Inspect.Link)
	to := kubelet.Layout(target)
	if from.Kind != layout.PodBlock || to.Kind != layout.Block || to.PV != from.PV || to.PodUID != from.PodUID {
		return healer.Invalid("volume_path", "is a symbolic link, and not kubelet's own one from a pod to its block volume")
	}
	o.c.Volume.Path = target
	o.c.MountPoints = slices.Delete(o.c.MountPoints, 0, 1)
	o.add(healer.RoleTarget, target, true)
	last := len(o.c.MountPoints) - 1
	o.c.MountPoints[0], o.c.MountPoints[last] = o.c.MountPoints[last], o.c.MountPoints[0]
	return o.inspect(ctx)
}
