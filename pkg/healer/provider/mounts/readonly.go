package mounts

import (
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// meantWritable reports whether a mount point should be writable. Without a record the
// mount's own flag decides: a driver that wants read-only sets it.
func meantWritable(c healer.Case, p healer.MountPoint) bool {
	if c.Volume.Capability != nil && c.Volume.Capability.ReadOnly {
		return false
	}
	if p.Want != nil {
		return !p.Want.Attr.Has(facts.AttrReadOnly) && !p.Want.ReadOnlySuper
	}
	return len(p.Stack) > 0 && !p.Stack[0].Attr.Has(facts.AttrReadOnly)
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
	case facts.IsType(sb.FSType, facts.ReadOnly), !ev.meantWritable():
		return nil
	case written.Reason == healer.ReadOnlyFilesystem:
		how = "the filesystem refused a write as read-only (EROFS)"
	case sb.EmergencyReadOnly:
		how = "the filesystem turned read-only after an error (emergency_ro)"
	case sb.ReadOnly:
		how = "the filesystem is read-only, and the mount is not"
	case sb.Upper != nil && (sb.Upper.ReadOnly || sb.Upper.EmergencyReadOnly):
		how = "the filesystem that the overlay writes to is read-only"
	default:
		return nil
	}
	return ev.one(healer.Degraded, healer.ReadOnlyFilesystem, adviceShutdown, "%s", how)
}
