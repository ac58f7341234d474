package healer

import (
	"context"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/csi-addons/node-healer/pkg/host"
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

// Place is one path where the volume is or should be mounted.
type MountPoint struct {
	Role Role
	Path string
	// Named is true for the paths that the request itself names.
	Named bool
	// Proven is true when more than the caller's word says that the mount point is the
	// volume's: kubelet's vol_data.json, the record, or that it is named, with
	// --standalone.
	Proven bool
	// PodUID is empty for a staging mount point and for paths outside kubelet's
	// layout.
	PodUID string
	// Layout is what the path says by itself.
	Layout host.Layout
	// Stack holds the mounts on the path, top first; empty: nothing is mounted.
	Stack []host.Mount
	// Want is the mount point as it was when the volume was last healthy; nil when no
	// record shows it.
	Want *MountPointRecord
	// Own is what the mount point's own mount answered, where others of the superblock may
	// answer something else (NFS); not asked for all others.
	Own host.Answer
	// Look is what a worker saw at the path itself.
	Inspect host.PathInfo
	// Inside is the mount in a container, with what a touch of it gave; nil for a
	// mount point of another role. The path leads to it from outside.
	InContainer *InContainer
}

// Inside is a mount of the volume in the mount namespace of a container.
type InContainer struct {
	host.ContainerMount
	Probe host.ContainerProbe
	// Attr are the attributes that it is to have, Sharing how it is to share mount
	// events: for what an interrupted replacement left, those of what it replaced.
	Attr    host.Attr
	Sharing host.Sharing
	// Ended is true for a filesystem that has shut itself down, although it answers.
	Ended bool
	// Proof says why it is known to be the volume's; Doubt why not.
	Proof, Unproven string
}

// String names the mount point for people: the path, or container and path for what a
// container has.
func (p MountPoint) String() string {
	if p.InContainer != nil {
		return p.InContainer.String()
	}
	return p.Path
}

// Dev gives the key of the mount point's superblock in the case: the device number
// of the mount, or for a raw block volume the device itself, because all device
// nodes share the superblock of devtmpfs.
func (p MountPoint) Dev() host.Dev {
	if p.Inspect.Kind == host.KindBlock {
		return p.Inspect.Rdev
	}
	if len(p.Stack) == 0 {
		return host.Dev{}
	}
	return p.Stack[0].Dev
}

// Mounted reports whether something is mounted at the path itself, and not only at
// a directory above it.
func (p MountPoint) Mounted() bool { return len(p.Stack) > 0 && p.Stack[0].Path == p.Path }

// Unfinished is true for a mount that an interrupted step left at the mount point, and
// that nobody wants to be as it is.
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

// Stale is true for a mount of NFS whose root the server no longer knows. Others of
// the same superblock may be good: what is mounted anew shares it.
func (p MountPoint) Stale() bool {
	if p.InContainer != nil {
		return host.IsNFS(p.InContainer.Mount.FSType) && p.InContainer.Probe.Errno == syscall.ESTALE
	}
	return p.Own.Errno == syscall.ESTALE
}

func (p MountPoint) staleOnHost() bool { return p.InContainer == nil && p.Stale() }

// Top gives the mount that a path walk ends on.
func (p MountPoint) Top() (host.Mount, bool) {
	if len(p.Stack) == 0 {
		return host.Mount{}, false
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
	// Mount points has the target that the request names first, then the
	// staged one, then the volume's others.
	MountPoints []MountPoint
	// Dormant are recorded mount points that still exist and that nobody is known to
	// use at the moment.
	Dormant []MountPointRecord
	// BootID identifies this boot, which began at BootTime.
	BootID   string
	BootTime time.Time
	// Superblocks holds each mounted filesystem instance once, by device.
	Superblocks map[host.Dev]host.Superblock
	// Record is nil when the volume was never seen healthy here.
	Record *Record
	// Found are the conditions that the providers asked before this one found.
	Found []Condition
	// Newest is a unique mount id that was the highest in the kernel when the volume's
	// storage answered; 0 if it did not, or where there are none.
	Newest uint64
	// Lingering are mounts that containers have of previous superblocks which still
	// answer: the driver may let an old daemon live for them.
	Lingering []InContainer
	// OnBare are mounts that containers have of the directory beneath a target,
	// OnPlaceholder those that they got in the middle of a step.
	OnBare, OnPlaceholder []StartedWith
	// OnOldDevice are containers that started before the device of a raw block volume
	// got another number.
	OnOldDevice []StartedBefore
	// Unverified are containers of the volume's pods that were there before its
	// superblock was replaced, and of which nobody here can see what they have.
	Unverified []host.Unverified
	// UnverifiedStart are those that started while another mount than the present one,
	// or none, may have stood at their pod's mount point.
	UnverifiedStart []host.Unverified
	// began is when this was seen at the earliest, lastSeen when what the record says
	// last was, both in time since the boot.
	began, lastSeen time.Duration
}

// Superblock gives the filesystem instance at a mount point, with the answer of the
// mount point's own mount.
func (c Case) Superblock(p MountPoint) host.Superblock {
	sb := c.Superblocks[p.Dev()]
	if p.Own.Asked && !sb.Answer.Silent {
		sb.Answer = p.Own
	}
	return sb
}

// AnswersAlone is true for a mount point whose own mount answers something else than
// its superblock.
func (c Case) AnswersAlone(p MountPoint) bool {
	whole := c.Superblocks[p.Dev()].Answer
	return p.Own.Asked && (p.Own.Silent != whole.Silent || p.Own.Errno != whole.Errno)
}

// Unusable returns a condition found so far that keeps what is mounted at a mount point
// from being used: of the mount point itself, or of its superblock, which is judged
// once for all its mount points. A merely degraded volume is no such condition: a pod
// that waits for its mount is not helped by waiting longer.
func (c Case) Unusable(p MountPoint) (Condition, bool) {
	shared := !c.AnswersAlone(p) && len(p.Stack) > 0
	return c.unusable(func(cond Condition) bool {
		return cond.MountPoint == p.Path || shared && !cond.Superblock.Zero() && cond.Superblock == p.Dev()
	})
}

// UnusableAt returns a condition found so far at a path that keeps the volume from
// being used there.
func (c Case) UnusableAt(path string) (Condition, bool) {
	return c.unusable(func(cond Condition) bool { return cond.MountPoint == path })
}

func (c Case) unusable(is func(Condition) bool) (Condition, bool) {
	at := slices.IndexFunc(c.Found, func(cond Condition) bool { return cond.Disables() && is(cond) })
	if at < 0 {
		return Condition{}, false
	}
	return c.Found[at], true
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

// Below returns what is left of a directory of a filesystem after base, and whether it
// is base or lies below it.
func Below(base, dir string) (rest string, below bool) {
	if dir == base {
		return "", true
	}
	return strings.CutPrefix(dir, strings.TrimSuffix(base, "/")+"/")
}

// Proven reports whether more than the caller's word says that all of the case is
// the volume's. A staging path at which nothing is may be any: many drivers stage
// nothing.
func (c Case) Proven() bool {
	return len(c.MountPoints) > 0 && c.MountPoints[0].Proven && !slices.ContainsFunc(c.MountPoints, func(p MountPoint) bool {
		return p.Named && !p.Proven && (p.Role != RoleStaging || len(p.Stack) > 0)
	})
}

// Staged returns the staging mount point, if the volume has one. One that is proven counts
// before one that only the caller names, then one that is a mount of its own before
// a directory in another mount, and last a path with nothing on it: a driver may
// stage below that.
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

// Invasiveness orders steps: the engine takes the least invasive that helps.
type Invasiveness int

// The costs of a step.
const (
	Rebind Invasiveness = iota
	Remount
	Replace
	Restage
	Repair
)

// Step is one heal action at one place. It is data: it can be printed and
// tested without being run. Running it twice must be safe.
type Step struct {
	Name       string
	MountPoint MountPoint
	Cost       Invasiveness
	Heals      []Reason
	// Source is the superblock that the step brings to the mount point; the engine
	// proves its identity against the record first.
	Source host.Dev
	// Writes is true for a step that writes to the device behind the mount point, or
	// has the kernel do it: mount, remount, replay, repair.
	Writes bool
	// Refused says why the step must not run now; empty: it may.
	Refused string
	// Note is what the step leaves different from before; empty for nothing.
	Note string
	// Together, if set, runs instead of Run at all mount points where a step of this name
	// may run, this one among them. It gives an error or nil for each.
	Together func(ctx context.Context, steps []Step, revalidate []func(context.Context) error) []error
	// Run acts. It calls still right before the mount point becomes usable and gives
	// up, leaving a state from which the next call heals, when still fails.
	Run func(ctx context.Context, revalidate func(context.Context) error) error
}

// CanHeal is true for a reason that the step is for.
func (s Step) CanHeal(r Reason) bool { return slices.Contains(s.Heals, r) }

// Finding is what one provider says of a case.
type Finding struct {
	// Mine is true when the volume is this provider's business.
	Mine       bool
	Conditions []Condition
	Steps      []Step
}

// Provider knows one kind of storage. It is a value in an explicit list.
type Provider interface {
	Name() string
	// Examine judges a case. It touches neither mounts nor devices: all
	// evidence is in the case.
	Examine(c Case) (Finding, error)
}

// ErrRefused marks an error that means "must not", not "went wrong".
var ErrRefused = host.ErrRefused

// Permit is the leave to run one step.
type Permit interface {
	// Still fails as soon as the reason for the permit is gone.
	Revalidate(ctx context.Context) error
	// Leave ends the permit with the step's error and frees what it holds.
	Leave(err error)
}

// Gate knows what is wanted of volumes on this node, and what is forbidden. Each
// of its errors says why, by whose word, and what would change it.
type Gate interface {
	// Look is asked before a volume is looked at.
	Inspect(ctx context.Context, v Volume) error
	// Wants is true when the mount point is known to be wanted now. It is asked in looks
	// for mount points that are empty, and nothing is changed by it.
	Wants(ctx context.Context, c Case, p MountPoint) bool
	// Enter is asked once before each step.
	Enter(ctx context.Context, d Diagnosis, s Step) (Permit, error)
	// Write is asked before a write is tried at a mount point, which changes nothing
	// that anybody sees, and writes all the same: to a disk, if onDisk is set,
	// which another node may own by now.
	Write(ctx context.Context, c Case, p MountPoint, onDisk bool) error
}
