package facts

// RebindPlan says which staged mount goes where, and how it ends up there.
type RebindPlan struct {
	Staged Mount
	// Sub is the directory (or file) below the staged root that the mount point shows;
	// empty for the root itself.
	Sub    string
	Target string
	// Attr are the final attributes; all others are cleared.
	Attr Attr
	// Private takes the mount out of the peer group of its parent, as the
	// record shows it.
	Private bool
	// Shared has it share its events again, as the record shows it.
	Shared bool
	// Ended is true for a dead filesystem that answers all the same, Stale for one of
	// NFS that must answer ESTALE.
	Ended, Stale bool
	// Covers is the dead mount at Target on top of which it goes; zero for none.
	Covers Mount
}

// UnmountPlan names a mount on top of a stack, and what it hides.
type UnmountPlan struct {
	// Top is the topmost mount: a dead one, or a placeholder that an interrupted step, or one
	// that is no longer wanted, left there.
	Top         Mount
	Placeholder bool
	// Below is the mount right beneath Top. It stays, and is what processes meet then.
	Below Ref
}
