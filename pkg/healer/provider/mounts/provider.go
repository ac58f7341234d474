package mounts

import (
	"context"
	"fmt"
	"slices"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// Host is what the steps ask of the host; *node.Node is the real one.
type Host interface {
	Rebind(ctx context.Context, plan facts.RebindPlan, revalidate func(context.Context) error) error
	Finish(ctx context.Context, plan facts.RebindPlan, placeholder facts.Mount, revalidate func(context.Context) error) error
	CanReplace() bool
	CanCover() bool
	Replace(ctx context.Context, plan facts.RebindPlan, dead facts.Mount, revalidate func(context.Context) error) error
	Cover(ctx context.Context, plan facts.RebindPlan, revalidate func(context.Context) error) error
	UnmountTop(ctx context.Context, plan facts.UnmountPlan, revalidate func(context.Context) error) error
}

// Provider is the generic provider.
type Provider struct{ host Host }

// New returns the provider.
func New(h Host) Provider { return Provider{host: h} }

// Name implements healer.Provider.
func (Provider) Name() string { return "mounts" }

// Examine implements healer.Provider. What containers have is not its business.
func (p Provider) Examine(c healer.Case) (healer.Finding, error) {
	f := healer.Finding{Mine: true, Conditions: p.diagnose(c)}
	c.Found = slices.Concat(c.Found, f.Conditions)
	for _, mp := range c.MountPoints {
		f.Steps = append(f.Steps, p.steps(c, mp)...)
	}
	return f, nil
}

// diagnose judges each superblock once, at the first mount point that shows it, and again
// at each mount point where it is to be replaced or has an answer of its own.
func (p Provider) diagnose(c healer.Case) (found []healer.Condition) {
	judged := map[facts.Dev]bool{}
	for _, mp := range c.MountPoints {
		if mp.InContainer != nil {
			continue
		}
		covered := !p.host.CanReplace() && onlyDeadBeneath(c, mp) // this provider stacked them
		for _, cond := range judgeMountPoint(c, mp) {
			if !covered || cond.Reason != healer.StackedMounts {
				found = append(found, cond)
			}
		}
		if len(mp.Stack) == 0 {
			continue
		}
		dev, outlived, alone := mp.Dev(), outlived(c, mp), c.AnswersAlone(mp)
		if judged[dev] && !outlived && !alone {
			continue
		}
		judged[dev] = judged[dev] || !alone
		for _, cond := range judgeSuperblock(c, mp) {
			cond.Acute = cond.Acute || outlived && slices.Contains(deadReasons, cond.Reason)
			found = append(found, cond)
		}
	}
	return found
}

// What a person should do, for conditions that no step here heals.
const (
	adviceRepublish = "delete the pod, so that kubelet publishes the volume anew"
	adviceRestage   = "delete all pods on this node that use the volume, so that the driver stages it anew"
	adviceRecord    = "see what mounted it; if it is right, remove the volume's record from the state directory"
	adviceWrong     = "see what mounted it; if it is wrong, delete the pod, so that kubelet publishes the volume anew"
	adviceStacked   = "see what mounted twice, and unmount the top when no container uses it"
)

// judgeMountPoint returns what is wrong with how the volume is mounted at a mount point.
func judgeMountPoint(c healer.Case, p healer.MountPoint) []healer.Condition {
	if len(p.Stack) == 0 {
		return judgeEmpty(p)
	}
	var found []healer.Condition
	if p.Stack[0].RootDeleted {
		found = append(found, conditionAt(p, healer.Inaccessible, healer.StaleFileHandle, adviceRepublish, "the directory that the mount shows was deleted"))
	}
	if len(p.Stack) > 1 {
		found = append(found, stacked(c, p))
	}
	if wrong := wrongVolume(c, p); wrong != "" {
		advice := adviceRecord
		if p.Want == nil {
			advice = adviceWrong
		}
		found = append(found, conditionAt(p, healer.Inaccessible, healer.WrongVolumeMounted, advice, "%s", wrong))
	}
	if c.Block && p.Inspect.Kind != facts.KindBlock && p.Inspect.Kind != facts.KindNone {
		found = append(found, conditionAt(p, healer.Inaccessible, healer.NotABlockDevice, adviceRepublish, "a raw block volume is expected, and a %s is there", p.Inspect.Kind))
	}
	return append(found, judgeReadOnlyMount(c, p)...)
}

func judgeEmpty(p healer.MountPoint) []healer.Condition {
	switch {
	case p.Role == healer.RoleStaging && p.Want == nil:
		// Many drivers stage nothing, or stage below the path they were given.
		return nil
	case p.Role == healer.RoleStaging:
		return []healer.Condition{conditionAt(p, healer.Inaccessible, healer.StagingNotMounted, adviceRestage, "the mount recorded there is gone")}
	}
	lost := conditionAt(p, healer.Inaccessible, healer.NotMounted, adviceRepublish, "the path exists and nothing is mounted on it")
	lost.Acute = true
	return []healer.Condition{lost}
}

// conditionAt is one of a mount point, and not of the filesystem behind it.
func conditionAt(p healer.MountPoint, s healer.Status, r healer.Reason, advice, format string, args ...any) healer.Condition {
	return healer.Condition{Status: s, Reason: r, MountPoint: p.Path, Message: fmt.Sprintf(format, args...), Advice: advice}
}

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
		found.Advice, found.Ambiguous = adviceRestage, true
	}
	return found
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
	answers := sb.Answer.Asked && !sb.Answer.TimedOut && sb.Answer.Errno == 0 && !sb.Shutdown
	staged, _ := c.Staged()
	if answers && p.Role == healer.RoleTarget && len(staged.Stack) > 0 && p.Dev() != staged.Dev() &&
		facts.LocalFS(sb.FSType) && facts.LocalFS(staged.Stack[0].FSType) {
		return "it is not what is staged"
	}
	if p.Want == nil {
		return ""
	}
	ofRecord := c.Record.Staged() == nil || c.Record.Staged().Dev == p.Want.Dev
	switch {
	case !ofRecord:
		return "" // a driver made it of the staged filesystem; only that one has an identity
	case answers && p.Role == healer.RoleTarget && c.Record.Staged() != nil && len(staged.Stack) > 0 && p.Dev() != staged.Dev():
		return "it is not what is staged, as it was when the volume was last healthy"
	case sb.FSType != c.Record.FSType:
		return fmt.Sprintf("filesystem type is %s, recorded was %s", healer.QuoteName(sb.FSType), healer.QuoteName(c.Record.FSType))
	case sb.Device == nil && sb.Source != c.Record.Source:
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
