package engine

import (
	"errors"
	"fmt"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/facts/layout"
	"github.com/csi-addons/node-healer/pkg/healer"
)

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
func proveWithoutDevice(c healer.Case, dev facts.Dev, sb facts.Superblock) error {
	mountPoint, found := ownMountPoint(c, dev)
	if !found {
		return errors.New("without a device only the staged mount can prove identity, and it is another filesystem")
	}
	top, _ := mountPoint.Top()
	want := c.Record.MountPoint(mountPoint.Path)
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
	case sb.FSType != c.Record.FSType || sb.Source != c.Record.Source:
		return errors.New("type or source differs from the record")
	case anySource && !atKubelets:
		return errors.New("it was mounted anew, and its source names nothing that could identify it")
	case !named(c, mountPoint):
		return errors.New("it was mounted anew, and no vol_data.json of kubelet names this volume there")
	}
	return nil
}

// ownMountPoint returns the mount point that identifies a filesystem: the staging mount
// point, or a target of a volume that is not staged.
func ownMountPoint(c healer.Case, dev facts.Dev) (healer.MountPoint, bool) {
	for _, p := range c.MountPoints {
		top, mounted := p.Top()
		if mounted && top.Dev == dev && (p.Role == healer.RoleStaging || p.Role == healer.RoleTarget && c.Record.Staged() == nil) {
			return p, true
		}
	}
	return healer.MountPoint{}, false
}
