package healer

import (
	"context"
	"slices"
	"syscall"
	"time"

	"github.com/csi-addons/node-healer/pkg/host"
)

// Role says what a place is for.
type Role string

// The roles of a place.
const (
	Staged    Role = "staged"
	Published Role = "published"
	Container Role = "container"
)

// Place is one path where the volume is or should be mounted.
type Place struct {
	Role Role
	Path string
	// Named is true for the paths that the request itself names.
	Named bool
	// Proven is true when more than the caller's word says that the place is the
	// volume's: kubelet's vol_data.json, the record, or that it is named, with
	// --standalone.
	Proven bool
	// PodUID is empty for a staged place and for paths outside kubelet's
	// layout.
	PodUID string
	// Layout is what the path says by itself.
	Layout host.Layout
	// Stack holds the mounts on the path, top first; empty: nothing is mounted.
	Stack []host.Mount
	// Want is the place as it was when the volume was last healthy; nil when no
	// record shows it.
	Want *PlaceRecord
	// Own is what the place's own mount answered, where others of the superblock may
	// answer something else (NFS); not asked for all others.
	Own host.Answer
	// Look is what a worker saw at the path itself.
	Look host.PathLook
	// Inside is the mount in a container, with what a touch of it gave; nil for a
	// place of another role. The path leads to it from outside.
	Inside *Inside
}

// Inside is a mount of the volume in the mount namespace of a container.
type Inside struct {
	host.ContainerMount
	Sight host.InsideSight
	// Attr are the attributes that it is to have, Sharing how it is to share mount
	// events: for what an interrupted replacement left, those of what it replaced.
	Attr    host.Attr
	Sharing host.Sharing
	// Ended is true for a filesystem that has shut itself down, although it answers.
	Ended bool
	// Proof says why it is known to be the volume's; Doubt why not.
	Proof, Doubt string
}

// String names the place for people: the path, or container and path for what a
// container has.
func (p Place) String() string {
	if p.Inside != nil {
		return p.Inside.String()
	}
	return p.Path
}

// Dev gives the key of the place's superblock in the case: the device number
// of the mount, or for a raw block volume the device itself, because all device
// nodes share the superblock of devtmpfs.
func (p Place) Dev() host.Dev {
	if p.Look.Kind == host.KindBlock {
		return p.Look.Rdev
	}
	if len(p.Stack) == 0 {
		return host.Dev{}
	}
	return p.Stack[0].Dev
}

// Mounted reports whether something is mounted at the path itself, and not only at
// a directory above it.
func (p Place) Mounted() bool { return len(p.Stack) > 0 && p.Stack[0].Path == p.Path }

// Unfinished is true for a mount that an interrupted step left at the place, and
// that nobody wants to be as it is.
func (p Place) Unfinished() bool {
	if len(p.Stack) == 0 {
		return false
	}
	top := p.Stack[0]
	if p.Want == nil {
		return top.Interim()
	}
	return top.Unsettled(p.Want.Attr) || top.Interim() && top.Attr != p.Want.Attr
}

// Stale is true for a mount of NFS whose root the server no longer knows. Others of
// the same superblock may be good: what is mounted anew shares it.
func (p Place) Stale() bool {
	if p.Inside != nil {
		return host.IsNFS(p.Inside.Mount.FSType) && p.Inside.Sight.Errno == syscall.ESTALE
	}
	return p.Own.Errno == syscall.ESTALE
}

func (p Place) staleOnHost() bool { return p.Inside == nil && p.Stale() }

// Top gives the mount that a path walk ends on.
func (p Place) Top() (host.Mount, bool) {
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
	// Places has the published place that the request names first, then the
	// staged one, then the volume's others.
	Places []Place
	// Dormant are recorded places that still exist and that nobody is known to
	// use at the moment.
	Dormant []PlaceRecord
	// BootID identifies this boot, which began at BootTime.
	BootID   string
	BootTime time.Time
	// Superblocks holds each mounted filesystem instance once, by device.
	Superblocks map[host.Dev]host.Superblock
	// Record is nil when the volume was never seen healthy here.
	Record *Record
	// Newest is a unique mount id that was the highest in the kernel when the volume's
	// storage answered; 0 if it did not, or where there are none.
	Newest uint64
	// Lingering are mounts that containers have of former superblocks which still
	// answer: the driver may let an old daemon live for them.
	Lingering []Inside
	// OnBare are mounts that containers have of the directory beneath a published place,
	// OnPlaceholder those that they got in the middle of a step.
	OnBare, OnPlaceholder []StartedWith
	// OnOldDevice are containers that started before the device of a raw block volume
	// got another number.
	OnOldDevice []StartedBefore
	// Unverified are containers of the volume's pods that were there before its
	// superblock was replaced, and of which nobody here can see what they have.
	Unverified []host.Unverified
	// UnverifiedStart are those that started while another mount than the present one,
	// or none, may have stood at their pod's place.
	UnverifiedStart []host.Unverified
	// began is when this was seen at the earliest, lastSeen when what the record says
	// last was, both in time since the boot.
	began, lastSeen time.Duration
}

// Superblock gives the filesystem instance at a place, with the answer of the
// place's own mount.
func (c Case) Superblock(p Place) host.Superblock {
	sb := c.Superblocks[p.Dev()]
	if p.Own.Asked && !sb.Answer.Silent {
		sb.Answer = p.Own
	}
	return sb
}

// Place finds a place by its path.
func (c Case) Place(path string) (Place, bool) {
	for _, p := range c.Places {
		if p.Path == path {
			return p, true
		}
	}
	return Place{}, false
}

// Proven reports whether more than the caller's word says that all of the case is
// the volume's. A staging path at which nothing is may be any: many drivers stage
// nothing.
func (c Case) Proven() bool {
	return len(c.Places) > 0 && c.Places[0].Proven && !slices.ContainsFunc(c.Places, func(p Place) bool {
		return p.Named && !p.Proven && (p.Role != Staged || len(p.Stack) > 0)
	})
}

// Staged returns the staged place, if the volume has one. One that is proven counts
// before one that only the caller names, then one that is a mount of its own before
// a directory in another mount, and last a path with nothing on it: a driver may
// stage below that.
func (c Case) Staged() (staged Place, found bool) {
	for _, p := range c.Places {
		switch {
		case p.Role != Staged, staged.Proven && !p.Proven:
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
	Name  string
	Place Place
	Cost  Invasiveness
	Heals []Reason
	// Source is the superblock that the step brings to the place; the engine
	// proves its identity against the record first.
	Source host.Dev
	// Writes is true for a step that writes to the device behind the place, or
	// has the kernel do it: mount, remount, replay, repair.
	Writes bool
	// Refused says why the step must not run now; empty: it may.
	Refused string
	// Note is what the step leaves different from before; empty for nothing.
	Note string
	// Together, if set, runs instead of Run at all places where a step of this name
	// may run, this one among them. It gives an error or nil for each.
	Together func(ctx context.Context, steps []Step, still []func(context.Context) error) []error
	// Run acts. It calls still right before the place becomes usable and gives
	// up, leaving a state from which the next call heals, when still fails.
	Run func(ctx context.Context, still func(context.Context) error) error
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
	Examine(ctx context.Context, c Case) (Finding, error)
}

// ErrRefused marks an error that means "must not", not "went wrong".
var ErrRefused = host.ErrRefused

// Permit is the leave to run one step.
type Permit interface {
	// Still fails as soon as the reason for the permit is gone.
	Still(ctx context.Context) error
	// Leave ends the permit with the step's error and frees what it holds.
	Leave(err error)
}

// Gate knows what is wanted of volumes on this node, and what is forbidden. Each
// of its errors says why, by whose word, and what would change it.
type Gate interface {
	// Look is asked before a volume is looked at.
	Look(ctx context.Context, v Volume) error
	// Wants is true when the place is known to be wanted now. It is asked in looks
	// for places that are empty, and nothing is changed by it.
	Wants(ctx context.Context, c Case, p Place) bool
	// Enter is asked once before each step.
	Enter(ctx context.Context, d Diagnosis, s Step) (Permit, error)
	// Write is asked before a write is tried at a place, which changes nothing
	// that anybody sees, and writes all the same: to a disk, if onDisk is set,
	// which another node may own by now.
	Write(ctx context.Context, c Case, p Place, onDisk bool) error
}
