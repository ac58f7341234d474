package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/facts/layout"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// admission is a step that may run, with the permit to do so.
type admission struct {
	step   healer.Step
	permit healer.Permit
}

func leaveAll(admitted []admission, err error) {
	for _, a := range admitted {
		a.permit.Leave(err)
	}
}

// admitAtOnce bounds the steps about which the gate is asked side by side.
const admitAtOnce = 16

// admitAll asks for a permit for each step and notes which were refused. Its error is a
// busy one.
func (e *Engine) admitAll(ctx context.Context, d healer.Diagnosis, steps []healer.Step, lock *volumeLock, t tries) ([]admission, error) {
	permits, errs := make([]healer.Permit, len(steps)), make([]error, len(steps))
	var asking errgroup.Group
	asking.SetLimit(admitAtOnce)
	for i, s := range steps {
		asking.Go(func() error {
			permits[i], errs[i] = e.admit(ctx, d, s, lock)
			return nil
		})
	}
	_ = asking.Wait() // each error is its step's
	var admitted []admission
	var busy error
	for i, s := range steps {
		t.tried[stepKey(s)] = true
		switch err := errs[i]; {
		case err == nil:
			admitted = append(admitted, admission{s, permits[i]})
		case healer.KindOf(err) == healer.KindBusy:
			busy = err
		default:
			t.refuse(s, healer.RuleOf(err), err.Error())
		}
	}
	if busy != nil {
		leaveAll(admitted, busy)
		return nil, busy
	}
	return admitted, nil
}

// What a record of an earlier boot says of steps that began does not count: the driver would
// be called again while it may be at work.
var errEarlierBoot = errors.New("the volume was not seen healthy since the node booted, so the driver may be about to stage it")

// admit proves that the superblock which the step brings is the volume's, and asks the gate whether
// the mount point is wanted. Its error says why the step must not run; it is a busy one while
// another volume on the same filesystem is healed.
//
// Time passes between what was observed and the step. So the step's worker compares mount ids
// again right before it acts, and asks the permit (Revalidate) before a mount becomes writable.
func (e *Engine) admit(ctx context.Context, d healer.Diagnosis, s healer.Step, lock *volumeLock) (healer.Permit, error) {
	if err := e.mayChange(lock); err != nil {
		return nil, healer.RefusedBy(healer.RuleMode, err)
	}
	if e.isClosing() {
		return nil, healer.RefusedBy(healer.RuleShutdown, healer.ErrShuttingDown)
	}
	var unproven error
	if s.Sourceless() {
		unproven = proveVolume(d.Case)
	} else {
		if err := lock.add(key{superblock: s.Source}); err != nil {
			return nil, err
		}
		unproven = proveIdentity(e.identified(d.Case, s.Source), s.Source)
	}
	switch {
	case unproven != nil:
		return nil, healer.RefusedBy(healer.RuleIdentity, fmt.Errorf("identity not proven: %w", unproven))
	case s.Sourceless() && s.Cost == healer.Restage && !d.Case.RecordOfThisBoot():
		return nil, healer.RefusedBy(healer.RuleWanted, errEarlierBoot)
	}
	return e.cfg.Gate.Enter(ctx, d, s)
}

// mayChange says why a call must change nothing, whatever it finds; nil if it may.
func (e *Engine) mayChange(lock *volumeLock) error {
	switch {
	case e.cfg.CheckOnly:
		return errors.New("the server only checks (--mode=check)")
	case lock.checks:
		return errors.New("the call only checks")
	case e.cfg.DryRun:
		return errors.New("the server changes nothing (--dry-run)")
	}
	return nil
}

// proveVolume fails unless it is clear whose mount points these are, and what belongs there: the
// driver is about to mount a superblock that does not exist yet, so its identity cannot be proven
// before.
func proveVolume(c healer.Case) error {
	switch {
	case c.Record == nil:
		return errors.New("the volume was never seen healthy on this node")
	case !c.Proven():
		return errors.New("only the caller says that these are the volume's mount points")
	default:
		return nil
	}
}

// identified returns the case with a device read anew: a disk may have been replaced by
// another one under the same number, which its sequence number tells where nothing else does.
func (e *Engine) identified(c healer.Case, dev facts.Dev) healer.Case {
	sb, known := c.Superblocks[dev]
	if !known || sb.Device == nil || sb.Device.Dev.Zero() {
		return c
	}
	device := e.cfg.Node.BlockDevice(sb.Device.Dev)
	device.Identity.FilesystemUUID = sb.Device.Identity.FilesystemUUID // sysfs does not have it
	sb.Device = &device
	c.Superblocks = maps.Clone(c.Superblocks)
	c.Superblocks[dev] = sb
	return c
}

// proveIdentity fails unless the superblock that a step is about to bring to a mount point is the
// recorded volume's: else a pod would write to another pod's volume. The error says which proof is
// missing.
func proveIdentity(c healer.Case, dev facts.Dev) error {
	if c.Record == nil {
		return errors.New("the volume was never seen healthy on this node")
	}
	sb, known := c.Superblocks[dev]
	if !known {
		return fmt.Errorf("nothing is known of the filesystem on device %s", dev)
	}
	if sb.Device == nil {
		return proveWithoutDevice(c, dev, sb)
	}
	if differs := healer.Differs(c.Record.Identity, sb.Device.Identity); differs != "" {
		return errors.New(differs)
	}
	if healer.SameDiskSeq(c, sb) && (sb.Kind == facts.KindBlock || c.Record.Identity.FilesystemUUID != "") {
		return nil // the same disk, with the same filesystem on it if it is one
	}
	staged, _ := c.Staged()
	switch id := c.Record.Identity; {
	case id.Empty():
		return errors.New("the device has no serial number, WWID, device-mapper UUID or filesystem UUID")
	case id.Serial == "" && id.WWID == "" && id.DMUUID == "" && !named(c, staged):
		return errors.New("only the filesystem UUID and the size are as recorded, which a clone shares, and no vol_data.json of kubelet names this volume at the staging mount point")
	}
	return nil
}

// named reports whether kubelet's file for a mount point names this volume.
func named(c healer.Case, p healer.MountPoint) bool {
	d := p.Inspect.VolData
	return d != nil && d.VolumeHandle == c.Volume.ID && d.DriverName == c.Driver
}

// proveWithoutDevice proves a network, FUSE or memory filesystem: it is the recorded
// mount itself, or kubelet's files name this volume for the mount point and the source
// is the recorded one.
func proveWithoutDevice(c healer.Case, dev facts.Dev, sb healer.Superblock) error {
	// A target identifies only a volume that is not staged.
	at := slices.IndexFunc(c.MountPoints, func(p healer.MountPoint) bool {
		top, mounted := p.Top()
		return mounted && top.Dev == dev && (p.Role == healer.RoleStaging || p.Role == healer.RoleTarget && c.Record.Staged() == nil)
	})
	if at < 0 {
		return errors.New("without a device only the staged mount can prove identity, and it is another filesystem")
	}
	mountPoint := c.MountPoints[at]
	top := mountPoint.Stack[0]
	want, source := c.Record.MountPoint(mountPoint.Path), c.Record.Source
	if want != nil { // where nothing is staged, each pod's mount may name another server
		source = cmp.Or(want.Source, source)
	}
	if want != nil && c.Record.BootID == c.BootID && want.MountID != 0 && want.MountID == top.ID {
		return nil
	}
	// A daemon chooses its source freely; kubelet's own path for the volume says whose
	// it is.
	anySource := sb.Source == "" || sb.Source == "none" || sb.Source == sb.FSType || facts.IsType(sb.FSType, facts.Memory)
	atKubelets := facts.IsFUSE(sb.FSType) && (mountPoint.Layout.Kind == layout.Staging || mountPoint.Layout.Kind == layout.Pod)
	switch {
	case mountPoint.Stale():
		return errors.New("its own root is stale")
	case sb.FSType != c.Record.FSType || top.Source != source:
		return errors.New("type or source differs from the record")
	case anySource && !atKubelets:
		return errors.New("it was mounted anew, and its source names nothing that could identify it")
	case !named(c, mountPoint):
		return errors.New("it was mounted anew, and no vol_data.json of kubelet names this volume there")
	}
	return nil
}
