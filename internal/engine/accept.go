package engine

import (
	"cmp"
	"slices"
	"strings"
	"syscall"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/facts/layout"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// accept refuses mount points that are not the request's volume, and finds the driver.
func (o *observation) accept() error {
	drivers := o.engine.cfg.Drivers
	if len(drivers) == 1 {
		o.c.Driver = drivers[0] // unless a file names one
	}
	named := false // the first file that names the driver counts
	for i, p := range o.c.MountPoints {
		field := "staging_target_path"
		if i == 0 {
			field = "volume_path"
		}
		if err := acceptPath(field, p); err != nil {
			return err
		}
		d := p.Inspect.VolData
		if d == nil || d.VolumeHandle == "" {
			continue
		}
		if i == 0 && d.VolumeHandle != o.c.Volume.ID {
			return healer.NotFound("volume_id: kubelet's vol_data.json for volume_path names another volume")
		}
		if !named && d.VolumeHandle == o.c.Volume.ID && d.DriverName != "" {
			o.c.Driver, named = d.DriverName, true
		}
	}
	if named && len(drivers) > 0 && !slices.Contains(drivers, o.c.Driver) {
		return healer.NotFound("volume_id: names a volume of driver %s, and this server serves those of %s only (--driver-name)",
			o.c.Driver, strings.Join(drivers, ", "))
	}
	return o.acceptCapability()
}

func acceptPath(field string, p healer.MountPoint) error {
	l := p.Inspect
	errno := cmp.Or(l.ParentErrno, l.Errno) // the path is only looked at where its parent was
	switch {
	case !l.Inspected || p.Mounted():
		return nil // what is mounted exists
	case errno == syscall.ELOOP:
		return healer.Invalid(field, "a component is a symbolic link")
	case errno == syscall.ENAMETOOLONG:
		return healer.Invalid(field, "is too long for the filesystem it lies on")
	case l.Missing() && field == "volume_path":
		return healer.NotFound("volume_path: does not exist on this node")
	case l.Missing():
		return nil // a staging path that is gone is a condition
	case len(p.Stack) > 0 && errno != 0:
		return nil // the staged mount that it lies in does not answer
	case errno != 0:
		return healer.Failed("inspect "+field, errno)
	case l.Kind == facts.KindSymlink && (field != "volume_path" || insteadOfMount(p) == ""):
		return healer.Invalid(field, "is a symbolic link")
	}
	return nil
}

// acceptCapability compares what the caller says the volume is with what is mounted.
func (o *observation) acceptCapability() error {
	p := o.c.MountPoints[0]
	o.c.Block = p.Inspect.Kind == facts.KindBlock ||
		p.Layout.Kind == layout.Block || p.Layout.Kind == layout.BlockStaging
	want := o.c.Volume.Capability
	if want == nil {
		return nil
	}
	switch {
	case want.Access == healer.AccessBlock && p.Inspect.Kind == facts.KindDirectory:
		return healer.Invalid("volume_capability", "says block, and volume_path is a directory")
	case want.Access == healer.AccessMount && o.c.Block:
		return healer.Invalid("volume_capability", "says mount, and volume_path is that of a raw block volume")
	}
	o.c.Block = want.Access == healer.AccessBlock
	top, mounted := p.Top()
	// Many drivers that serve a filesystem of their own ignore fs_type; the names of those on a disk
	// mean the same to every driver.
	same := want.FSType == top.FSType || facts.IsType(want.FSType, facts.Ext) && facts.IsType(top.FSType, facts.Ext)
	if mounted && !same && facts.IsType(want.FSType, facts.Disk) && facts.IsType(top.FSType, facts.Disk) {
		return healer.Invalid("volume_capability.mount.fs_type", "says %s, and volume_path is %s", want.FSType, top.FSType)
	}
	return nil
}
