package driver

import (
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/host"
	"github.com/csi-addons/node-healer/pkg/mount"
)

// mayHaveDisk reports whether the volume has a disk that another node could own, or may
// have one: nothing is mounted, and no record tells what was.
func mayHaveDisk(c healer.Case) bool {
	if c.Block || c.Record != nil && c.Record.Identity != (host.Identity{}) {
		return true
	}
	var types []string
	if c.Record != nil && c.Record.FSType != "" {
		types = append(types, c.Record.FSType)
	}
	for _, p := range c.MountPoints {
		for _, m := range p.Stack {
			if m.Path != p.Path {
				continue
			}
			types = append(types, m.FSType)
			if c.Superblocks[m.Dev].Device != nil {
				return true
			}
		}
	}
	return len(types) == 0 || slices.ContainsFunc(types, func(t string) bool { return !mount.IsType(t, mount.NoDisk) })
}

// capability returns how the volume is used, as the caller said, without mount flags,
// which may hold secrets; nil if it did not say.
func capability(c healer.Case) *csi.VolumeCapability {
	said := c.Volume.Capability
	if said == nil && !c.Block {
		return nil
	}
	var out csi.VolumeCapability
	if said != nil {
		mode := csi.VolumeCapability_AccessMode_Mode_value[said.AccessMode]
		out.AccessMode = &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_Mode(mode)}
	}
	if c.Block {
		out.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	} else {
		out.AccessType = &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: said.FSType}}
	}
	return &out
}
