package driver

import (
	"fmt"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// mayHaveDisk reports whether the volume has a disk that another node could own, or may
// have one: nothing is mounted, and no record tells what was.
func mayHaveDisk(c healer.Case) bool {
	disk := c.Block || c.Record != nil && c.Record.Identity != (facts.Identity{})
	var types []string
	if c.Record != nil && c.Record.FSType != "" {
		types = append(types, c.Record.FSType)
	}
	for _, p := range c.MountPoints {
		for _, m := range p.Stack {
			if m.Path == p.Path {
				types = append(types, m.FSType)
				disk = disk || c.Superblocks[m.Dev].Device != nil
			}
		}
	}
	return disk || len(types) == 0 || slices.ContainsFunc(types, func(t string) bool { return !facts.IsType(t, facts.NoDisk) })
}

// accessMode returns CSI's access mode; UNKNOWN where none is said. many is true for a
// driver that offers SINGLE_NODE_MULTI_WRITER.
func accessMode(with healer.StageRequest, many bool) (csi.VolumeCapability_AccessMode_Mode, error) {
	mode, known := map[string]csi.VolumeCapability_AccessMode_Mode{
		"":                 csi.VolumeCapability_AccessMode_UNKNOWN,
		"ReadOnlyMany":     csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY,
		"ReadWriteMany":    csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER,
		"ReadWriteOnce":    csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER,
		"ReadWriteOncePod": csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER,
	}[with.VolumeAccessMode]
	switch {
	case with.AccessMode != "":
		mode = csi.VolumeCapability_AccessMode_Mode(csi.VolumeCapability_AccessMode_Mode_value[with.AccessMode])
	case !known:
		return mode, fmt.Errorf("%w: access mode %.40q is not known", healer.ErrRefused, with.VolumeAccessMode)
	case !many && strings.HasPrefix(with.VolumeAccessMode, "ReadWriteOnce"):
		mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	}
	return mode, nil
}

// capability returns how the volume is used; nil if that is not said.
func capability(with healer.StageRequest, mode csi.VolumeCapability_AccessMode_Mode, flags healer.SecretList) *csi.VolumeCapability {
	if mode == csi.VolumeCapability_AccessMode_UNKNOWN {
		return nil
	}
	out := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode}}
	if with.Block {
		out.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	} else {
		out.AccessType = &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: with.FSType, MountFlags: flags}}
	}
	return out
}
