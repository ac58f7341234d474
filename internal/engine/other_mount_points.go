package engine

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/facts/layout"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// otherMountPoints adds the mount points of the volume that the request did not name:
// its staging mount point, and the targets of other pods on this node.
func (o *observation) otherMountPoints(ctx context.Context) error {
	before := len(o.c.MountPoints)
	for i := range o.c.MountPoints {
		o.c.MountPoints[i].Proven = o.proven(o.c.MountPoints[i])
	}
	if staged, _ := o.c.Staged(); !staged.Proven || !staged.Mounted() {
		o.addStaged() // a driver may stage below the path it was given
	}
	for _, p := range o.siblings() {
		o.add(healer.RoleTarget, p, false)
	}
	for _, p := range o.subpaths() {
		o.add(healer.RoleTarget, p, false)
	}
	for _, p := range o.c.Volume.Published {
		if len(o.table.Stack(p)) == 0 {
			o.add(healer.RoleTarget, p, false)
		}
	}
	if o.c.Record != nil {
		for _, r := range o.c.Record.MountPoints {
			if r.Role == healer.RoleTarget {
				o.add(healer.RoleTarget, r.Path, false)
			}
		}
	}
	if len(o.c.MountPoints) == before {
		return nil
	}
	if err := o.inspect(ctx); err != nil {
		return err
	}
	return o.filter(ctx, before)
}

// addStaged adds the staging mount point as the record or kubelet's layout has it.
func (o *observation) addStaged() {
	if r := o.c.Record.Staged(); r != nil {
		o.add(healer.RoleStaging, r.Path, false)
		return
	}
	base := o.node.Kubelet().Staging(o.c.Driver, o.c.Volume.ID)
	if pv := o.c.MountPoints[0].Layout.PV; o.c.Block && pv != "" {
		base = o.node.Kubelet().BlockStaging(pv)
	}
	mounts := slices.Concat(
		o.table.InDirectory(path.Base(path.Dir(base))),
		o.table.InDirectory(path.Base(base)), // as ceph-csi does: a directory named after the volume
		o.table.Of(o.c.MountPoints[0].Dev()),
	)
	for _, m := range mounts {
		if m.Path == base || strings.HasPrefix(m.Path, base+"/") {
			o.add(healer.RoleStaging, m.Path, false)
			return
		}
	}
}

// siblings returns the paths of mounts at kubelet's paths for the same PersistentVolume
// in other pods.
func (o *observation) siblings() []string {
	named := o.c.MountPoints[0]
	pv := named.Layout.PV
	// kubelet mounts in a directory named after the PersistentVolume, but for
	// the staging path.
	mounts := o.table.InDirectory(pv)
	if pv == "" {
		mounts = o.table.Of(named.Dev())
	}
	return o.pathsOf(mounts, "/", func(l layout.Path) bool {
		return (pv == "" || l.PV == pv) && (l.Kind == layout.Pod || l.Kind == layout.Block)
	})
}

// subpaths returns the paths of mounts at kubelet's subPath directories, of the pods
// that have the volume, that are of a superblock which is no longer the volume's. One
// that shares its superblock with the other mount points is as healthy as they are.
func (o *observation) subpaths() []string {
	pv := o.c.MountPoints[0].Layout.PV
	if pv == "" {
		return nil
	}
	var mounts []facts.Mount
	for _, dev := range previousSuperblocks(o.c) {
		mounts = append(mounts, o.table.Of(dev)...)
	}
	if facts.IsFUSE(o.c.Superblocks[o.c.MountPoints[0].Dev()].FSType) && !o.known.containers {
		mounts = o.table.Mounts() // one may be from before there was a record
	}
	return o.pathsOf(mounts, "/volume-subpaths/"+pv+"/", func(l layout.Path) bool { return l.Kind == layout.Subpath && l.PV == pv })
}

// pathsOf returns the paths of mounts, each once, that have a part and are such of kubelet's. To
// look for the part is cheap, and tells of nearly all mounts of a node that they are not.
//
// An inline volume is of one pod only, and the directory has the name that the pod gave to the volume: what
// other pods call alike is not asked, or one that hangs would delay the volumes of all.
func (o *observation) pathsOf(mounts []facts.Mount, part string, such func(layout.Path) bool) (found []string) {
	kubelet, named := o.node.Kubelet(), o.c.MountPoints[0]
	inline := named.Inspect.VolData != nil && named.Inspect.VolData.Lifecycle == "Ephemeral"
	for _, m := range mounts {
		if !strings.Contains(m.Path, part) {
			continue
		}
		if l := kubelet.Layout(m.Path); such(l) && (!inline || l.PodUID == named.PodUID) {
			found = append(found, m.Path)
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// filter keeps, of the mount points added without having been named, those that are
// this volume's and in use.
func (o *observation) filter(ctx context.Context, from int) error {
	kept := o.c.MountPoints[:from:from]
	for _, p := range o.c.MountPoints[from:] {
		p.Proven = o.isVolumes(p)
		switch {
		case p.Role == healer.RoleStaging, p.Proven && len(p.Stack) > 0:
			kept = append(kept, p)
		case !p.Proven || p.Inspect.Missing():
			continue // another volume's, or the pod is gone
		default:
			used, err := o.used(ctx, p)
			if err != nil {
				return err
			}
			if used {
				kept = append(kept, p)
			}
		}
	}
	o.c.MountPoints = kept
	return nil
}

// proven reports whether more than the caller's word says that a mount point which the
// call names is the volume's. With --standalone the caller vouches for what is mounted
// there, unless kubelet's file names another volume. A mount point that lost its mount
// contradicts no record.
func (o *observation) proven(p healer.MountPoint) bool {
	switch {
	case o.isVolumes(p):
		return true
	case p.Inspect.VolData != nil && !named(o.c, p):
		return false
	case len(p.Stack) == 0:
		return o.c.Record.MountPoint(p.Path) != nil
	}
	return o.engine.cfg.Standalone
}

// isVolumes reports whether kubelet's file for a mount point names this volume, or,
// where there is none, the mount point is as recorded: an inline volume of another pod
// may share the directory name.
func (o *observation) isVolumes(p healer.MountPoint) bool {
	top, mounted := p.Top()
	switch {
	case p.Layout.Kind == layout.Subpath:
		// Kubelet's file is that of the same pod's target.
		return slices.ContainsFunc(o.c.MountPoints, func(of healer.MountPoint) bool {
			return of.Layout.Kind == layout.Pod && of.Layout.PV == p.Layout.PV && of.PodUID == p.PodUID && o.isVolumes(of)
		})
	case p.Inspect.VolData != nil:
		return named(o.c, p) && (!mounted || o.isOwn(p, top))
	}
	r := o.c.Record.MountPoint(p.Path)
	return r != nil && p.Dev() == r.Dev && top.Root == r.Root && o.c.RecordOfThisBoot()
}

// isOwn reports whether kubelet's file for a mount point is about the mount that its
// path is in. A driver stages at the path that kubelet gave it, or below. A mount on
// that is something else, such as an emptyDir of a container whose mounts propagate to
// the host; and so is a mount above.
func (o *observation) isOwn(p healer.MountPoint, m facts.Mount) bool {
	staged := func(at string) bool { return p.Layout.Base != "" && facts.Beneath(p.Layout.Base, at) }
	parent, _ := o.table.ParentMount(path.Dir(m.Path))
	return (m.Path == p.Path || staged(m.Path)) && !staged(parent.Path)
}

// used reports whether an empty mount point is to be judged: a running container of its pod
// has the volume mounted, or the cluster says that the pod wants it at a mount point that was
// mounted in this boot. Another one is most likely that of a pod that ends or begins: if
// nobody says that its pod does not want it, it is noted as not judged.
func (o *observation) used(ctx context.Context, p healer.MountPoint) (bool, error) {
	if made := insteadOfMount(p); made != "" {
		o.c.Unjudged = append(o.c.Unjudged, healer.Unjudged{MountPoint: p, Why: "the driver made a " + made + " there and mounted nothing, and only what is mounted is asked"})
		return false, nil
	}
	recorded := o.c.Record.MountPoint(p.Path)
	wants, unknown := o.engine.cfg.Gate.Wants(ctx, o.c, p)
	if wants && recorded != nil && !recorded.Dev.Zero() && o.c.RecordOfThisBoot() { // it has none since an earlier boot (newRecord)
		return true, nil
	}
	if dev := o.superblockOf(p); !dev.Zero() {
		h, err := o.node.Holder(ctx, p.PodUID, dev)
		switch {
		case h != nil:
			h.Close()
			return true, nil
		case err != nil && p.Inspect.VolData == nil:
			return false, healer.Failed("look for running containers", err)
		case err != nil: // where no walk sees all processes in time, the volume's other mount points are judged
			unknown = cmp.Or(unknown, err)
		}
	}
	if recorded != nil {
		o.c.Dormant = append(o.c.Dormant, *recorded)
	}
	why := "its pod wants it, and kubelet may be about to publish it"
	if unknown != nil {
		why = fmt.Sprintf("nothing shows that it is wanted: %v", unknown)
	}
	if (wants || unknown != nil) && p.Inspect.VolData != nil {
		o.c.Unjudged = append(o.c.Unjudged, healer.Unjudged{MountPoint: p, Why: why})
	}
	return false, nil
}

// wanted looks whether the path of a check that no call names, or one that a driver mounts nothing at, is
// to be judged, if it is empty, and fails if nobody may want it.
func (o *observation) wanted(ctx context.Context) error {
	p := o.c.MountPoints[0]
	if len(p.Stack) > 0 || !o.c.Volume.Unasked && insteadOfMount(p) == "" {
		return nil
	}
	before := len(o.c.Unjudged)
	switch used, err := o.used(ctx, p); {
	case err != nil || used:
		return err
	case len(o.c.Unjudged) == before:
		return healer.NotFound("volume_path: nothing is mounted there, and nothing shows that it should be")
	}
	o.c.MountPoints = slices.Delete(o.c.MountPoints, 0, 1)
	return nil
}

// insteadOfMount returns what a driver made at an empty mount point of kubelet's: a device node, as TopoLVM until
// 2024, or a symbolic link, as Fluid if it is told to, and Huawei's driver once to raw block volumes; else "". What is
// published otherwise is a file or a directory while it is not mounted.
func insteadOfMount(p healer.MountPoint) string {
	switch {
	case p.Inspect.VolData == nil || len(p.Stack) > 0:
	case p.Inspect.Kind == facts.KindBlock:
		return "device node"
	case p.Inspect.Kind == facts.KindSymlink && (p.Layout.Kind == layout.Pod || p.Layout.Kind == layout.Block):
		return "symbolic link"
	}
	return ""
}

// superblockOf returns the superblock that a container of an empty mount point would
// have: the staged one, or while that is gone the recorded one of this boot.
func (o *observation) superblockOf(p healer.MountPoint) facts.Dev {
	if staged, found := o.c.Staged(); found && len(staged.Stack) > 0 {
		return staged.Dev()
	}
	if r := o.c.Record.MountPoint(p.Path); r != nil && o.c.RecordOfThisBoot() {
		return r.Dev
	}
	return facts.Dev{}
}
