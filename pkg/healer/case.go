package healer

import (
	"slices"
	"syscall"
	"time"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/facts/layout"
)

// Role says what a mount point is for.
type Role string

// The roles of a mount point.
const (
	RoleStaging   Role = "staging"
	RoleTarget    Role = "target"
	RoleContainer Role = "container"
)

// Noun returns what messages call a mount point of this role.
func (r Role) Noun() string {
	if r == RoleTarget {
		return "target"
	}
	return string(r) + " mount point"
}

// MountPoint is one path where the volume is or should be mounted.
type MountPoint struct {
	Role Role
	Path string
	// Named is true for the paths that the request itself names.
	Named bool
	// Proven is true when more than the caller's word says that the mount point is the
	// volume's: kubelet's vol_data.json, the record, or with --standalone that it is
	// named.
	Proven bool
	// PodUID is empty for a staging mount point and for paths outside kubelet's
	// layout.
	PodUID string
	// Layout is what the path says by itself.
	Layout layout.Path
	// Stack holds the mounts on the path, top first; empty: nothing is mounted.
	Stack []facts.Mount
	// Want is the mount point as it was when the volume was last healthy; nil without a
	// record of it.
	Want *MountPointRecord
	// Own is what the mount point's own mount answered, where others of the superblock
	// may answer something else (NFS); unset for all other types.
	Own facts.Answer
	// Inspect is what a worker saw at the path itself.
	Inspect facts.PathInfo
	// InContainer is the mount in a container; nil for a mount point of another role.
	// Path leads to it from outside.
	InContainer *InContainer
}

// InContainer is a mount of the volume in the mount namespace of a container.
type InContainer struct {
	facts.ContainerMount
	Probe facts.ContainerProbe
	// Attr are the attributes that it is to have, Sharing how it is to share mount
	// events: after an interrupted replacement, those of the mount that was replaced.
	Attr    facts.Attr
	Sharing facts.Sharing
	// Ended is true for a filesystem that has shut itself down, although it answers.
	Ended bool
	// Proof says why it is known to be the volume's; Unproven why not.
	Proof, Unproven string
}

// String returns the container's name and the path in it, for messages.
func (in InContainer) String() string { return containerMountName(in.ContainerMount) }

// String names the mount point for people: the path, or the container and the path in
// it.
func (p MountPoint) String() string {
	if p.InContainer != nil {
		return p.InContainer.String()
	}
	return p.Path
}

// Dev returns the key of the mount point's superblock in the case: the device number
// of the mount, or for a raw block volume the device itself, because all device
// nodes share the superblock of devtmpfs.
func (p MountPoint) Dev() facts.Dev {
	if p.Inspect.Kind == facts.KindBlock {
		return p.Inspect.Rdev
	}
	if len(p.Stack) == 0 {
		return facts.Dev{}
	}
	return p.Stack[0].Dev
}

// Mounted reports whether something is mounted at the path itself, and not only at
// a directory above it.
func (p MountPoint) Mounted() bool { return len(p.Stack) > 0 && p.Stack[0].Path == p.Path }

// Unfinished reports whether an interrupted step left a mount at the mount point that
// is not to stay as it is.
func (p MountPoint) Unfinished() bool {
	if len(p.Stack) == 0 {
		return false
	}
	top := p.Stack[0]
	if p.Want == nil {
		return top.Placeholder()
	}
	return top.Unfinalized(p.Want.Attr) || top.Placeholder() && top.Attr != p.Want.Attr
}

// Stale reports whether the server no longer knows the root of the NFS mount. Others of
// the same superblock may be good: what is mounted anew shares it.
func (p MountPoint) Stale() bool {
	if p.InContainer != nil {
		return facts.IsNFS(p.InContainer.Mount.FSType) && p.InContainer.Probe.Errno == syscall.ESTALE
	}
	return p.Own.Errno == syscall.ESTALE
}

// Top returns the mount that a path walk ends on.
func (p MountPoint) Top() (facts.Mount, bool) {
	if len(p.Stack) == 0 {
		return facts.Mount{}, false
	}
	return p.Stack[0], true
}

// Case is everything known about one volume at one moment. Providers decide on
// it alone, so that they can be tested from values.
type Case struct {
	Volume Volume
	// Driver is the CSI driver as kubelet's vol_data.json names it, or the
	// server's own driver name.
	Driver string
	// Block is true for a raw block volume.
	Block bool
	// MountPoints has the target that the request names first, then the staging mount
	// point, then the volume's others.
	MountPoints []MountPoint
	// Dormant are recorded mount points that still exist and that no pod is known to
	// use now.
	Dormant []MountPointRecord
	// Unjudged are empty mount points that exist, at which kubelet's vol_data.json names the
	// volume, and of which nobody says whether a pod wants the volume there now. They are
	// not in MountPoints.
	Unjudged []Unjudged
	// BootID identifies this boot, which began at BootTime.
	BootID   string
	BootTime time.Time
	// Superblocks holds each mounted filesystem instance once, by device.
	Superblocks map[facts.Dev]Superblock
	// WasLookedUp is what LookedUp returned earlier, since the server began.
	WasLookedUp bool
	// Record is nil when the volume was never seen healthy here.
	Record *Record
	// Evidence is what providers asked for themselves (Collector), by their names; a
	// provider that asked nothing, or failed, has none.
	Evidence map[string]Evidence
	// Found are the conditions that the providers asked before this one found.
	Found []Condition
	// Newest is a unique mount id that was the highest in the kernel when the volume's
	// storage answered; 0 if it did not, or without unique ids (below Linux 6.8).
	Newest uint64
	// Lingering are mounts that containers have of previous superblocks which still
	// answer: the driver may keep an old daemon for them.
	Lingering []InContainer
	// OnBare are mounts that containers have of the directory beneath a target,
	// OnPlaceholder those that they got in the middle of a step.
	OnBare, OnPlaceholder []StartedWith
	// OnOldDevice are containers that started before the device of a raw block volume
	// got another number.
	OnOldDevice []StartedBefore
	// Unverified are containers of the volume's pods that were there before its
	// superblock was replaced, and that cannot be inspected.
	Unverified []facts.Unverified
	// UnverifiedStart are those that started while another mount than the present one,
	// or none, may have been at their pod's mount point.
	UnverifiedStart []facts.Unverified
	// Began is when the observation began, LastSeen when the record was last true, both
	// in time since the boot.
	Began, LastSeen time.Duration
}

// Unjudged is a mount point of which it is not known whether it should have the volume.
type Unjudged struct {
	MountPoint MountPoint
	// Why says who does not tell, and why not.
	Why string
}

// Superblock returns the filesystem instance at a mount point, with the answer of the
// mount point's own mount.
func (c Case) Superblock(p MountPoint) Superblock {
	sb := c.Superblocks[p.Dev()]
	if p.Own.Asked && !sb.Answer.TimedOut {
		sb.Answer = p.Own
	}
	return sb
}

// AnswersAlone reports whether the own mount of a mount point answers something else
// than its superblock.
func (c Case) AnswersAlone(p MountPoint) bool {
	whole := c.Superblocks[p.Dev()].Answer
	return p.Own.Asked && (p.Own.TimedOut != whole.TimedOut || p.Own.Errno != whole.Errno)
}

// LookedUp reports whether the volume's FUSE daemon said, now or once before, of a name that
// cannot exist that there is none.
func (c Case) LookedUp() bool {
	for _, sb := range c.Superblocks {
		if sb.Lookup.NoSuchName() {
			return true
		}
	}
	return c.WasLookedUp
}

// LookupFailed reports whether a FUSE daemon's storage could not be asked for a name that cannot
// exist. A refusal tells more than how the storage was set up only where it once said that there is
// no such name; no other errno means anything.
func (c Case) LookupFailed(l facts.Lookup) bool {
	switch {
	case slices.Contains([]syscall.Errno{syscall.EIO, syscall.ETIMEDOUT, syscall.ENOTCONN, syscall.ECONNABORTED}, l.Errno): // the latter also of a daemon that lives
		return true
	case slices.Contains(facts.Denials(), l.Errno):
		return c.LookedUp()
	}
	return l.TimedOut
}

// Unusable returns a condition found so far that keeps what is mounted at a mount point
// from being used: of the mount point itself, or of its superblock, which is judged
// once for all its mount points. A merely degraded volume is no such condition: a pod
// that waits for its mount is not helped by waiting longer.
func (c Case) Unusable(p MountPoint) (Condition, bool) {
	at := slices.IndexFunc(c.Found, func(cond Condition) bool { return c.DisablesAt(cond, p) })
	if at < 0 {
		return Condition{}, false
	}
	return c.Found[at], true
}

// DisablesAt reports whether a condition keeps what is mounted at a mount point from being
// used.
func (c Case) DisablesAt(cond Condition, p MountPoint) bool {
	shared := !c.AnswersAlone(p) && len(p.Stack) > 0
	ofSuperblock := shared && !cond.Superblock.Zero() && cond.Superblock == p.Dev()
	return cond.Disables() && (cond.MountPoint == p.Path || ofSuperblock)
}

// MountPoint returns the mount point at a path.
func (c Case) MountPoint(path string) (MountPoint, bool) {
	for _, p := range c.MountPoints {
		if p.Path == path {
			return p, true
		}
	}
	return MountPoint{}, false
}

// Shown returns the mount points on the host that are the first to show a superblock: what is
// wrong with one is said once.
func (c Case) Shown() (first []MountPoint) {
	for _, p := range c.MountPoints {
		again := slices.ContainsFunc(first, func(of MountPoint) bool { return of.Dev() == p.Dev() })
		if len(p.Stack) > 0 && p.InContainer == nil && !again {
			first = append(first, p)
		}
	}
	return first
}

// ShowsAll reports whether a mount point of the volume shows all of a superblock. Else it is a
// directory of one that others have, too, as the node's own filesystem.
func (c Case) ShowsAll(dev facts.Dev) bool {
	return slices.ContainsFunc(c.MountPoints, func(p MountPoint) bool { return p.Dev() == dev && p.Mounted() && p.Stack[0].Root == "/" })
}

// TargetOf returns the path of a pod's target, else that of the first mount point, if there is one.
func (c Case) TargetOf(podUID string) string {
	if len(c.MountPoints) == 0 {
		return ""
	}
	at := slices.IndexFunc(c.MountPoints, func(p MountPoint) bool {
		return p.Role == RoleTarget && p.PodUID == podUID && podUID != ""
	})
	return c.MountPoints[max(at, 0)].Path
}

// Proven reports whether more than the caller's word says that all of the case is the
// volume's. A staging path with nothing mounted on it need not be proven: many drivers
// stage nothing.
func (c Case) Proven() bool {
	return len(c.MountPoints) > 0 && c.MountPoints[0].Proven && !slices.ContainsFunc(c.MountPoints, func(p MountPoint) bool {
		return p.Named && !p.Proven && (p.Role != RoleStaging || len(p.Stack) > 0)
	})
}

// Pods returns the pods of the proven mount points: a container's is never proven. It is not nil.
func (c Case) Pods() []string {
	pods := []string{}
	for _, p := range c.MountPoints {
		if p.Proven && p.PodUID != "" && !slices.Contains(pods, p.PodUID) {
			pods = append(pods, p.PodUID)
		}
	}
	return pods
}

// PodStayed reports whether a pod that had the volume when the record was written still has it.
// When the last of those pods goes, kubelet unstages the volume, and what is staged for the next
// pod is another superblock.
func (c Case) PodStayed() bool {
	return slices.ContainsFunc(c.MountPoints, func(p MountPoint) bool { return p.Role == RoleTarget && c.Record.MountPoint(p.Path) != nil })
}

// Staged returns the staging mount point, if the volume has one: preferably one that is
// proven, then one that is a mount of its own, then a directory in another mount, and
// last a path with nothing on it, below which a driver may stage.
func (c Case) Staged() (staged MountPoint, found bool) {
	for _, p := range c.MountPoints {
		switch {
		case p.Role != RoleStaging, staged.Proven && !p.Proven:
		case !found, p.Proven && !staged.Proven, p.Mounted() && !staged.Mounted(), len(p.Stack) > 0 && len(staged.Stack) == 0:
			staged, found = p, true
		}
	}
	return staged, found
}

// OldestMount returns the lowest unique id of the volume's mounts of a superblock on the host: a
// device number alone may be that of another one by now. It is 0 below Linux 6.8.
func (c Case) OldestMount(dev facts.Dev) (id uint64) {
	for _, p := range c.MountPoints {
		for _, m := range p.Stack {
			if p.InContainer == nil && m.Dev == dev && (id == 0 || m.ID < id) {
				id = m.ID
			}
		}
	}
	return id
}

// RecordOfThisBoot reports whether device numbers and mount ids in the record still
// mean anything.
func (c Case) RecordOfThisBoot() bool { return c.Record != nil && c.Record.BootID == c.BootID }

// PreviousOfBoot returns the superblocks that the record names for this boot.
func (c Case) PreviousOfBoot() []PreviousSuperblock {
	if c.Record == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(c.Record.Previous), func(f PreviousSuperblock) bool { return f.BootID != c.BootID })
}

// PreviousOf returns what the record says of a previous superblock of this boot.
func (c Case) PreviousOf(dev facts.Dev) (PreviousSuperblock, bool) {
	previous := c.PreviousOfBoot()
	at := slices.IndexFunc(previous, func(f PreviousSuperblock) bool { return f.Dev == dev })
	if at < 0 {
		return PreviousSuperblock{}, false
	}
	return previous[at], true
}

// Replaced reports whether the volume had a superblock of this boot before.
func (c Case) Replaced(dev facts.Dev) bool {
	_, known := c.PreviousOf(dev)
	return known
}

// Working returns the proven mount on the host that a container should have: the staged
// one, or what is published where nothing is staged.
func (c Case) Working() (facts.Mount, bool) {
	works := func(p MountPoint) bool {
		top, mounted := p.Top()
		return mounted && p.Proven && c.Superblock(p).Works() && !top.Placeholder()
	}
	if staged, _ := c.Staged(); works(staged) {
		return staged.Top()
	}
	if i := slices.IndexFunc(c.MountPoints, works); i >= 0 {
		return c.MountPoints[i].Top()
	}
	return facts.Mount{}, false
}
