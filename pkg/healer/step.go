package healer

import (
	"context"
	"slices"

	"github.com/csi-addons/node-healer/internal/operation"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// Cost orders steps: the engine takes the least invasive one that helps.
type Cost int

// The costs of a step.
const (
	// Delegate is to ask the driver: it knows its storage better than anyone here.
	Delegate Cost = iota - 1
	Rebind
	Replace
	Reconnect
	Restage
)

// Step is one heal action at one mount point. It is data: it can be printed and
// tested without being run. Running it twice must be safe.
type Step struct {
	Name string
	// Provider is the one that offers the step; the engine sets it.
	Provider   string
	MountPoint MountPoint
	Cost       Cost
	Heals      []Reason
	// Source is the superblock that the step brings to the mount point; the engine
	// proves its identity against the record first. A step of the cost Restage or
	// Delegate brings one that does not exist yet, or that only the driver knows, and has
	// none: the volume must be proven then, and the steps that bring the new superblock
	// anywhere prove its identity.
	Source facts.Dev
	// Writes is true for a step that writes to the device behind the mount point, or
	// has the kernel do it: mount, remount, replay, repair.
	Writes bool
	// Refused says why the step must not run now; empty if it may.
	Refused string
	// InputsChanged is true where the step had failed for what may be mended since: the driver
	// would be called with something else than the last time.
	InputsChanged bool
	// Note says what the step leaves different from before, if anything.
	Note string
	// RunBatch, if set, runs instead of Run, at all mount points where a step of this
	// name may run. It returns an error or nil for each.
	RunBatch func(ctx context.Context, steps []Step, revalidate []func(context.Context) error) []error
	// Run acts. It calls revalidate right before the mount point becomes usable. When
	// that fails it stops and leaves a state from which the next call heals.
	Run func(ctx context.Context, revalidate func(context.Context) error) error
}

// CanHeal reports whether the step is for a reason.
func (s Step) CanHeal(r Reason) bool { return slices.Contains(s.Heals, r) }

// Sourceless reports whether the step may have no Source.
func (s Step) Sourceless() bool {
	return (s.Cost == Restage || s.Cost == Delegate) && s.Source.Zero()
}

// Finding is what one provider says of a case.
type Finding struct {
	// Mine is true when the provider knows this kind of storage: else the rest is
	// ignored.
	Mine       bool
	Conditions []Condition
	Steps      []Step
}

// Provider knows one kind of storage. It is a value in an explicit list.
type Provider interface {
	Name() string
	// Examine judges a case. It is pure: all evidence is in the case, and the same case
	// gets the same finding.
	Examine(c Case) (Finding, error)
}

// Excluder is a provider that knows when no step but its own may run.
type Excluder interface {
	Provider
	// Excludes says why no step of another provider may run on the volume now; empty if
	// they may. It asks nothing, and counts also if Collect or Examine failed.
	Excludes(c Case) string
}

// ErrRefused marks an error that means "must not", not "went wrong".
var ErrRefused = operation.ErrRefused

// Permit allows one step to run.
type Permit interface {
	// Revalidate fails as soon as the reason for the permit is gone.
	Revalidate(ctx context.Context) error
	// Leave ends the permit with the step's error and frees what it holds.
	Leave(err error)
}

// Gate decides what may be changed on this node. Each of its errors says why not, who
// says so, and what would change it, and RuleOf names the rule.
type Gate interface {
	// Inspect is asked before a volume is observed. readersOnly is Volume.ReadersOnly.
	Inspect(ctx context.Context, v Volume) (readersOnly bool, err error)
	// Wants says whether a pod wants the volume at a mount point now; its error says who does
	// not tell, and why not. Checks ask it for empty mount points; nothing is changed
	// because of it.
	Wants(ctx context.Context, c Case, p MountPoint) (bool, error)
	// Enter is asked once before each step.
	Enter(ctx context.Context, d Diagnosis, s Step) (Permit, error)
	// Write is asked before a write is tried at a mount point. It leaves nothing behind
	// that a workload sees, and still writes: to a disk if onDisk is set, which another
	// node may own by now.
	Write(ctx context.Context, c Case, p MountPoint, onDisk bool) error
}
