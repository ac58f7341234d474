package nodeserver

import (
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-addons/node-healer/pkg/healer"
)

const (
	fieldCapability = "volume_capability"
	fieldAccessMode = "volume_capability.access_mode"
	fieldFSType     = "volume_capability.mount.fs_type"
	fieldMountFlags = "volume_capability.mount.mount_flags"
)

const (
	maxFSTypeBytes = 64
	maxFlagBytes   = 4096
)

// plainName begins with a letter or digit, so that no program takes a type for an option or a
// path.
var plainName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+-]*$`)

// capability checks a CSI capability and returns what matters for health. Mount flags
// may hold credentials (CSI spec, VolumeCapability), so they are no part of an error.
func capability(c *csi.VolumeCapability) (*healer.Capability, error) {
	if c == nil {
		return nil, nil //nolint:nilnil // no capability is a valid request
	}
	mode := c.GetAccessMode().GetMode()
	_, known := csi.VolumeCapability_AccessMode_Mode_name[int32(mode)]
	if !known || mode == csi.VolumeCapability_AccessMode_UNKNOWN {
		return nil, healer.Invalid(fieldAccessMode, "must be a mode that CSI 1.13 defines, got %d", int32(mode))
	}
	out := &healer.Capability{AccessMode: mode.String()}
	out.ReadOnly = mode == csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY || mode == csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	switch access := c.GetAccessType().(type) {
	case *csi.VolumeCapability_Block:
		out.Access = healer.AccessBlock
	case *csi.VolumeCapability_Mount:
		if err := mountVolume(access.Mount); err != nil {
			return nil, err
		}
		out.Access = healer.AccessMount
		out.FSType = access.Mount.GetFsType()
		for _, flag := range access.Mount.GetMountFlags() {
			// mount(8) takes several options in one word, and people write them so.
			out.ReadOnly = out.ReadOnly || slices.Contains(strings.Split(flag, ","), "ro")
		}
	default:
		return nil, healer.Invalid(fieldCapability, "must have either mount or block")
	}
	return out, nil
}

func mountVolume(m *csi.VolumeCapability_MountVolume) error {
	if fs := m.GetFsType(); fs != "" && (len(fs) > maxFSTypeBytes || !plainName.MatchString(fs)) {
		return healer.Invalid(fieldFSType, "must be a plain name: a letter or digit, then letters, digits and . _ + -, at most %d in all, got %s",
			maxFSTypeBytes, quoted(fs))
	}
	size := 0
	for _, flag := range m.GetMountFlags() {
		if strings.ContainsFunc(flag, unicode.IsControl) {
			return healer.Invalid(fieldMountFlags, "must not contain control characters")
		}
		size += len(flag)
	}
	if size > maxFlagBytes {
		return healer.Invalid(fieldMountFlags, "have %d bytes, at most %d are allowed", size, maxFlagBytes)
	}
	return nil
}
