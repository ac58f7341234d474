package mounts

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// stacked says that several mounts are at a mount point: the top one hides the others.
func stacked(c healer.Case, p healer.MountPoint) healer.Condition {
	found := conditionAt(p, healer.Degraded, healer.StackedMounts, adviceStacked, "%d mounts are stacked on the path", len(p.Stack))
	switch {
	case leftBehind(p):
		found.Acute = true
		found.Message += ", the top one left by an interrupted rebind"
	case outlived(c, p):
		found.Message += ", the top one of a filesystem instance that has ended"
	case slices.ContainsFunc(p.Stack[1:], func(m facts.Mount) bool { return m.Dev != p.Stack[0].Dev }):
		// A covered mount cannot be reached by a path, so it stays.
		found.Message += ", and the top one covers another filesystem instance"
		found.Advice, found.Ambiguous = adviceRestage, !succeeds(c, p.Stack)
		if !slices.ContainsFunc(p.Stack, func(m facts.Mount) bool { return !facts.IsFUSE(m.FSType) }) {
			found.Advice = adviceCovered
		}
	}
	return found
}

// succeeds reports whether the instance that a stack covers first is one that the volume is known to have had, and all
// mounts are alike. A driver that mounts anew over each daemon that has ended, as JuiceFS does, leaves no doubt which
// storage the volume is. What lies deeper was judged while that was at the top, and the record may not name it any more.
func succeeds(c healer.Case, stack []facts.Mount) bool {
	top := stack[0]
	below := stack[slices.IndexFunc(stack, func(m facts.Mount) bool { return m.Dev != top.Dev })].Dev
	return c.RecordOfThisBoot() && (c.Record.HasDev(below) || c.Replaced(below)) && !slices.ContainsFunc(stack, func(m facts.Mount) bool {
		return !facts.IsFUSE(m.FSType) || m.FSType != top.FSType || m.Source != top.Source
	})
}

// narrowed reports whether what is staged is a directory of the very filesystem beneath it: ceph-csi mounts a
// CephFS at the staging path, and binds a snapshot over that. Without the top, pods would get all of it.
func narrowed(p healer.MountPoint) bool {
	top := p.Stack[0]
	return p.Role == healer.RoleStaging && !slices.ContainsFunc(p.Stack[1:], func(m facts.Mount) bool {
		return m.Dev != top.Dev || m.Root == top.Root || !facts.Beneath(m.Root, top.Root)
	})
}

// sameNode reports whether all mounts at a target show one device node, which a container has apart from them: a kubelet
// that starts has raw block volumes published again, and the drivers of Azure's disks and of TopoLVM bind once more.
func sameNode(p healer.MountPoint) bool {
	top := p.Stack[0]
	return p.Role == healer.RoleTarget && p.Inspect.Kind == facts.KindBlock && !slices.ContainsFunc(p.Stack, func(m facts.Mount) bool {
		return m.Dev != top.Dev || m.Root != top.Root || m.RootDeleted != top.RootDeleted || m.Placeholder()
	})
}

// leftBehind reports whether the top of a stack is a placeholder that duplicates the
// mount below.
func leftBehind(p healer.MountPoint) bool {
	if len(p.Stack) < 2 || !p.Stack[0].Placeholder() {
		return false
	}
	top, below := p.Stack[0], p.Stack[1]
	return !below.Placeholder() && top.Dev == below.Dev && top.Root == below.Root
}

// interrupted reports whether a placeholder is alone at a mount point, or on the mount
// that it covers: the step was killed before it finalized it.
func interrupted(c healer.Case, p healer.MountPoint) bool {
	return p.Role == healer.RoleTarget && p.Unfinished() && (len(p.Stack) == 1 || onlyDeadBeneath(c, p))
}

// wrongVolume returns how what is mounted differs from what belongs there; empty when
// nothing contradicts.
func wrongVolume(c healer.Case, p healer.MountPoint) string {
	if d := p.Inspect.VolData; d != nil && d.VolumeHandle != "" && (d.VolumeHandle != c.Volume.ID || d.DriverName != c.Driver) {
		return "kubelet's vol_data.json names another volume"
	}
	top := p.Stack[0]
	sb := c.Superblock(p)
	answers := sb.Works()
	staged, _ := c.Staged()
	if answers && p.Role == healer.RoleTarget && len(staged.Stack) > 0 && p.Dev() != staged.Dev() &&
		facts.IsType(sb.FSType, facts.Disk) && facts.IsType(staged.Stack[0].FSType, facts.Disk) {
		return "it is not what is staged"
	}
	if p.Want == nil {
		return ""
	}
	recorded := isRecorded(c, p) // else type and source in the record may be those of another pod's
	ofRecord := c.Record.Staged() == nil || c.Record.Staged().Dev == p.Want.Dev
	switch {
	case !ofRecord:
		return "" // a driver made it of the staged filesystem; only that one has an identity
	case answers && p.Role == healer.RoleTarget && c.Record.Staged() != nil && len(staged.Stack) > 0 && p.Dev() != staged.Dev() && !sameShare(top, staged.Stack[0]):
		return "it is not what is staged, as it was when the volume was last healthy"
	case sb.FSType != c.Record.FSType && !recorded && (!sameClient(sb.FSType, c.Record.FSType) || !stagedSince(c, p)):
		return fmt.Sprintf("filesystem type is %s, recorded was %s", healer.QuoteName(sb.FSType), healer.QuoteName(c.Record.FSType))
	case sb.Device == nil && !recorded && top.Source != cmp.Or(p.Want.Source, c.Record.Source) && !stagedSince(c, p):
		if facts.IsFUSE(sb.FSType) {
			return "the source differs from the recorded one, as it also does where a daemon has a hash of its options in it (rclone): other options or a new key make another one"
		}
		return "the source differs from the recorded one"
	case sb.Device != nil && sb.Device.Known() && answers:
		recorded := c.Record.Identity
		if healer.SameDisk(c, sb) {
			recorded.Size = 0 // one that shrank is still the same; DeviceSizeChanged reports it
		}
		if differs := healer.DiffersSoFar(recorded, sb); differs != "" {
			return differs
		}
	}
	if p.Inspect.Kind != facts.KindBlock && top.Root != p.Want.Root {
		return fmt.Sprintf("it shows the directory %q of the filesystem, recorded was %q", top.Root, p.Want.Root)
	}
	return ""
}

// sameShare reports whether two mounts show one directory of an SMB server. A driver mounts a share anew at the staging
// path that does not answer (csi-driver-smb, Azure Files), and with nosharesock that is another superblock. The pod's
// own mount works again with the server.
func sameShare(a, b facts.Mount) bool {
	return facts.IsType(a.FSType, facts.SMB) && a.FSType == b.FSType && a.Source == b.Source && a.Root == b.Root
}

// sameClient reports whether a server or a daemon may give a volume either filesystem type: another version of NFS
// is agreed upon, or of a driver installed.
func sameClient(a, b string) bool {
	return slices.ContainsFunc([]facts.Traits{facts.NFS, facts.SMB, facts.FUSE}, func(t facts.Traits) bool {
		return facts.IsType(a, t) && facts.IsType(b, t)
	})
}

// stagedSince reports whether kubelet has had the volume staged for other pods, or in another boot, than the
// record knows: nothing is left of what the record is about. A driver may then name other servers, as a CephFS
// mount names the monitors that its cluster has now.
func stagedSince(c healer.Case, p healer.MountPoint) bool {
	podStayed := c.PodStayed() || slices.ContainsFunc(c.Unjudged, func(u healer.Unjudged) bool { return c.Record.MountPoint(u.MountPoint.Path) != nil }) // as far as is known
	return p.Inspect.VolData != nil && (!podStayed || !c.RecordOfThisBoot())
}

// meantWritable reports whether a mount point should be writable. Without a record the
// flag of the mount, or of a raw block volume's device, decides: a driver that wants read-only sets it. A disk that
// was writable for other pods of the volume was protected by somebody else.
func meantWritable(c healer.Case, p healer.MountPoint) bool {
	if c.Volume.Capability != nil && c.Volume.Capability.ReadOnly {
		return false
	}
	if p.Want != nil {
		return !p.Want.Attr.Has(facts.AttrReadOnly) && !p.Want.ReadOnlySuper
	}
	sb := c.Superblock(p)
	protected := sb.ProtectedBlock() && !c.Record.WasWritable(c.BootID, sb.Device.DiskSeq)
	return len(p.Stack) > 0 && !p.Stack[0].Attr.Has(facts.AttrReadOnly) && !protected
}

// judgeReadOnlyMount judges the mount's own flag; the superblock's is judged once for
// all its mounts.
func judgeReadOnlyMount(c healer.Case, p healer.MountPoint) []healer.Condition {
	top := p.Stack[0]
	switch {
	case interrupted(c, p):
		message := "an interrupted rebind left the mount read-only"
		if !top.Placeholder() {
			message = "an interrupted rebind may have left copies of the mount in other mount namespaces read-only"
		}
		unfinished := conditionAt(p, healer.Degraded, healer.ReadOnlyFilesystem, adviceRepublish, "%s", message)
		unfinished.Acute = true
		return []healer.Condition{unfinished}
	case leftBehind(p):
		return nil // StackedMounts reports it
	case p.Want != nil && meantWritable(c, p) && top.Attr.Has(facts.AttrReadOnly):
		return []healer.Condition{conditionAt(p, healer.Degraded, healer.ReadOnlyFilesystem, adviceRepublish, "the mount is read-only, recorded was read-write")}
	}
	return nil
}

// readOnly reports a superblock that is read-only and should not be.
func (ev evaluator) readOnly() []healer.Condition {
	how := ""
	written, _ := healer.ConditionOf(healer.OpWriteCheck, ev.sb.Write.Errno, ev.sb)
	switch sb := ev.sb; {
	case facts.IsType(sb.FSType, facts.ReadOnly), !ev.meantWritable(), ev.onlyLower():
		return nil
	case written.Reason == healer.ReadOnlyFilesystem && sb.FSType == "btrfs" && !sb.ReadOnly:
		return ev.one(healer.Degraded, healer.ReadOnlyFilesystem, adviceSubvolume, "its subvolume refused a write as read-only (EROFS)")
	case written.Reason == healer.ReadOnlyFilesystem:
		how = "the filesystem refused a write as read-only (EROFS)"
	case sb.EmergencyReadOnly:
		how = "the filesystem turned read-only after an error (emergency_ro)"
	case sb.ReadOnly && !ev.forReaders():
		how = "the filesystem is read-only, and the mount is not"
	case sb.Upper != nil && (sb.Upper.ReadOnly || sb.Upper.EmergencyReadOnly):
		how = "the filesystem that the overlay writes to is read-only"
	default:
		return nil
	}
	return ev.one(healer.Degraded, healer.ReadOnlyFilesystem, adviceShutdown, "%s", how)
}

// onlyLower reports whether the filesystem is an overlay of layers that are only read, as one of a container image.
func (ev evaluator) onlyLower() bool {
	has := func(option string) bool {
		return slices.ContainsFunc(ev.p.Stack[0].SuperOptions, func(o string) bool { return strings.HasPrefix(o, option) })
	}
	return ev.sb.FSType == "overlay" && has("lowerdir") && !has("upperdir=")
}

// forReaders reports whether nobody writes to the volume, so that the driver staged it read-only: not where
// one of its mounts was there already when the filesystem was writable.
func (ev evaluator) forReaders() bool {
	return ev.c.Volume.ReadersOnly && !slices.ContainsFunc(ev.c.MountPoints, func(p healer.MountPoint) bool {
		return p.Mounted() && p.Dev() == ev.sb.Dev && isRecorded(ev.c, p) && !p.Want.ReadOnlySuper
	})
}

// isRecorded reports whether the very mount that is topmost at a mount point is recorded.
func isRecorded(c healer.Case, p healer.MountPoint) bool {
	return p.Want != nil && c.RecordOfThisBoot() && p.Want.MountID != 0 && p.Want.MountID == p.Stack[0].ID
}

// unmountDuplicate offers to unmount a placeholder that is on top of the driver's own
// mount.
func (p Provider) unmountDuplicate(mp healer.MountPoint) healer.Step {
	return healer.Step{
		Name:       StepUnmountDuplicate,
		MountPoint: mp,
		Cost:       healer.Rebind,
		Heals:      []healer.Reason{healer.StackedMounts},
		Source:     mp.Dev(),
		Run: func(ctx context.Context, revalidate func(context.Context) error) error {
			return p.host.UnmountTop(ctx, facts.UnmountPlan{Top: mp.Stack[0], Placeholder: true, Below: mp.Stack[1].Ref()}, revalidate)
		},
	}
}
