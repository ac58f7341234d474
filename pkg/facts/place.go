package facts

// Position says where at a mount point a clone goes.
type Position int

const (
	// OnDirectory is on the empty directory (or file) of a mount point where nothing is
	// mounted.
	OnDirectory Position = iota
	// BeneathDead is beneath a dead mount (Linux 6.5), which is detached then. At no moment is
	// nothing mounted, so no process writes into the directory on the node's disk.
	BeneathDead
	// OnDead is on top of a dead mount, where the kernel cannot move a mount beneath
	// another one. Only a FUSE mount whose connection is gone (ENOTCONN) is covered: it
	// never answers again. The dead mount is made private first, or the kernel would put
	// copies of the clone on all of its peers, the staged mount among them. A driver that
	// unpublishes unmounts the clone, meets the dead mount, in which nothing can be
	// deleted, and unmounts that when it tries again.
	OnDead
)

// PlacePlan says which staged mount goes where, and how it ends up there.
type PlacePlan struct {
	Staged Mount
	// Sub is the directory (or file) below the staged root that the mount point shows;
	// empty for the root itself.
	Sub      string
	Target   string
	Position Position
	// Dead is the mount at Target to replace or to cover; zero for OnDirectory.
	Dead Mount
	// Placed is the placeholder that is there already, which is only to be finalized; zero if
	// one is to be placed.
	Placed Ref
	// Attr are the final attributes; all others are cleared.
	Attr Attr
	// Private takes the mount out of the peer group of its parent, as the
	// record shows it.
	Private bool
	// Shared has it share its events again, as the record shows it.
	Shared bool
	// Ended is true for a dead filesystem that answers all the same.
	Ended bool
}

// UnmountPlan names a mount on top of a stack, and what it hides.
type UnmountPlan struct {
	// Top is the topmost mount: a dead one, or a placeholder that an interrupted step, or one
	// that is no longer wanted, left there.
	Top         Mount
	Placeholder bool
	// Ended is true for a dead filesystem that answers all the same.
	Ended bool
	// Below is the mount right beneath Top. It stays, and is what processes meet then.
	Below Ref
}
