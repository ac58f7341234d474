package driver

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/facts/layout"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// StepRestage has the driver stage a volume anew whose FUSE daemon has died.
const StepRestage = "restage"

// Stager says which drivers are told to stage volumes anew, and with what drivers are
// called.
type Stager interface {
	// Order returns how a driver is told. Its error says why it is not, and what would
	// change that.
	Order(driver string) (healer.RestageOrder, error)
	// Request returns what kubelet would call the driver with. It fails for what cannot be
	// told exactly.
	Request(ctx context.Context, c healer.Case, staged healer.MountPoint) (healer.StageRequest, error)
	// Usage returns the part of it that a driver is told to heal with, in a cluster without
	// secrets.
	Usage(ctx context.Context, c healer.Case, at healer.MountPoint) (healer.StageRequest, error)
}

// Host is what is asked of the host; *node.Node is the real one.
type Host interface {
	FUSEDaemons(ctx context.Context, dev facts.Dev) (facts.FUSEDaemons, error)
	UnmountDead(ctx context.Context, path string, stack []facts.Mount, revalidate func(context.Context) error) error
	MountDead(ctx context.Context, path string, before facts.Mount, place bool) (placed, changed bool, err error)
	Mounting(ctx context.Context, paths []string, since time.Duration, driver int) ([]facts.FUSEDaemon, error)
}

// restageable returns the staging mount point of a volume that only the driver can bring
// back: a FUSE filesystem without a disk, all of whose mounts there are disconnected, or
// where nothing is left of what a step began to have staged. What is bare counts only while
// something else of the volume is dead: else kubelet has unstaged it, and may be about to have
// it staged for the next pod.
func restageable(c healer.Case) (healer.MountPoint, bool) {
	staged, found := c.Staged()
	if !found || c.Block || staged.Layout.Kind != layout.Staging {
		return staged, false
	}
	if !staged.Mounted() {
		return staged, c.Restaging() && isFUSE(c.Record.FSType, c.Record.Source) && slices.ContainsFunc(c.MountPoints, func(p healer.MountPoint) bool {
			if p.InContainer != nil {
				return facts.Disconnected(p.InContainer.Probe.Errno)
			}
			return p.Mounted() && facts.Disconnected(c.Superblock(p).Answer.Errno)
		})
	}
	return staged, !slices.ContainsFunc(staged.Stack, func(m facts.Mount) bool {
		sb, probed := c.Superblocks[m.Dev]
		return !probed || !facts.Disconnected(sb.Answer.Errno) || m.Path != staged.Path || !isFUSE(m.FSType, m.Source)
	})
}

// isFUSE reports whether a filesystem is one of FUSE that no disk lies behind.
func isFUSE(fsType, source string) bool {
	return facts.IsType(fsType, facts.FUSE) && facts.IsType(fsType, facts.NoDisk) && !strings.HasPrefix(source, "/dev/")
}

// restage offers to have the driver stage the volume anew.
func (p *Provider) restage(c healer.Case, e Evidence) (step healer.Step, offered bool) {
	staged, may := restageable(c)
	if !may || e.Order == "" && e.NotRestaged == "" {
		return step, false
	}
	step = healer.Step{
		Name: StepRestage, MountPoint: staged, Cost: healer.Restage,
		Heals:         []healer.Reason{healer.Disconnected, healer.DaemonGone, healer.StagingNotMounted},
		InputsChanged: e.InputsChanged,
	}
	wait := cmp.Or(e.NotRestaged, p.Excludes(c), p.tooSoon(c), e.Mounting)
	gone := slices.ContainsFunc(c.Found, func(cond healer.Condition) bool {
		return cond.Reason == healer.DaemonGone && cond.Superblock == staged.Dev()
	})
	switch {
	case wait != "" && staged.Mounted():
		step.Refused = wait
	case len(staged.Stack) > 0 && !gone: // another process may have the daemon's descriptor, and begin to serve
		step.Refused = "it is not known whether a process still has the FUSE connection open (the kernel tells since about Linux 6.16)"
	}
	if step.Refused == "" {
		step.Run = staging{Provider: p, c: c, staged: staged, evidence: e, wait: wait}.run
	}
	return step, true
}

// mounting says which process may be about to mount what a step began to have staged, this
// call's if none did before; empty for none. A second call would start a second daemon beside
// it, with a cache of its own on the same storage.
func (p *Provider) mounting(ctx context.Context, c healer.Case, staged healer.MountPoint, driver int) string {
	since := c.Began
	if c.Restaging() {
		since = c.Record.RestagingSince
	}
	found, err := p.cfg.Host.Mounting(ctx, []string{staged.Path, p.forDriver(staged.Path)}, since, driver)
	switch {
	case err != nil:
		return fmt.Sprintf("it cannot be told whether a process is about to mount there, as a step began at %s: %v", c.BootTime.Add(since).UTC().Format(time.RFC3339), err)
	case len(found) == 0:
		return ""
	}
	d := found[0]
	text := fmt.Sprintf("process %d (%s) has the staging path in its arguments and may be about to mount there, since %s; if it hangs, end it",
		d.PID, printable.Name(d.Command), c.BootTime.Add(d.Started).UTC().Format(time.RFC3339))
	if c.Began-d.Started > healer.MaxPending {
		text += fmt.Sprintf(": it has not mounted for more than %s, and until it ends the driver is not called", healer.MaxPending)
	}
	return text
}

// inputsChanged reports whether the driver would be called with something else than the last
// time. What was never tried is not asked for.
func (p *Provider) inputsChanged(ctx context.Context, c healer.Case) bool {
	from, is := p.cfg.Stager.(interface {
		Inputs(ctx context.Context, c healer.Case) (healer.StageInputs, error)
	})
	told, known := p.memory.told.Get(keyOf(c))
	if !is || !known {
		return false
	}
	now, err := from.Inputs(ctx, c)
	return err == nil && now.Version != "" && now.Version != told
}
