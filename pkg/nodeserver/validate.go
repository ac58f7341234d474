package nodeserver

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// The limits of a request, in bytes. Paths and components have Linux's PATH_MAX without
// the final NUL and NAME_MAX; maps and mount flags have CSI's general limit (section
// "Size Limits").
const (
	maxVolumeIDBytes  = 1024
	maxPathBytes      = 4095
	maxComponentBytes = 255
	maxMapBytes       = 4096
)

// The fields as errors name them, in the order in which they are checked.
const (
	fieldVolumeID   = "volume_id"
	fieldVolumePath = "volume_path"
	fieldStaging    = "staging_target_path"
	fieldSecrets    = "secrets"
	fieldContext    = "volume_context"
)

// rules validate the text of a request.
type rules struct {
	roots []string
	// standalone is true where the caller says how a volume is used.
	standalone bool
}

func newRules(roots []string, standalone bool) (rules, error) {
	if len(roots) == 0 {
		return rules{}, errors.New("nodeserver: at least one path root is required")
	}
	for _, root := range roots {
		// The root directory would disable the rule.
		if root == "/" || !path.IsAbs(root) || path.Clean(root) != root {
			return rules{}, fmt.Errorf("path root %s: must be an absolute, clean path other than /", quoted(root))
		}
	}
	return rules{roots: roots, standalone: standalone}, nil
}

// volume returns the volume that a request names, or the first broken rule, in the order
// of the fields. It does not check symlinks and existence, which would touch the node.
func (r rules) volume(req *healerpb.NodeHealerRequest) (healer.Volume, error) {
	v, err := r.named(req.GetVolumeId(), fieldVolumePath, req.GetVolumePath(), req.GetStagingTargetPath())
	if err != nil {
		return healer.Volume{}, err
	}
	if v.Capability, err = capability(req.GetVolumeCapability()); err != nil {
		return healer.Volume{}, err
	}
	if err := cmp.Or(smallMap(fieldSecrets, req.GetSecrets()), smallMap(fieldContext, req.GetVolumeContext())); err != nil {
		return healer.Volume{}, err
	}
	if r.standalone {
		// In a cluster they go no further: a caller whose word counted would choose the
		// backend of somebody's volume, as the stage secrets of an S3 driver name the server.
		v.Secrets, v.Context = req.GetSecrets(), req.GetVolumeContext()
		m := req.GetVolumeCapability().GetMount()
		v.MountFlags, v.MountGroup = m.GetMountFlags(), m.GetVolumeMountGroup()
	}
	v.Named = true
	return v, nil
}

// named returns the volume that an ID and two paths name, of which NodeHealer's volume_path must
// not be empty.
func (r rules) named(id, field, path, staging string) (healer.Volume, error) {
	switch {
	case id == "":
		return healer.Volume{}, healer.Invalid(fieldVolumeID, "is required")
	case strings.TrimSpace(id) == "":
		return healer.Volume{}, healer.Invalid(fieldVolumeID, "must not be blank")
	case len(id) > maxVolumeIDBytes:
		return healer.Volume{}, healer.Invalid(fieldVolumeID, "has %d bytes, at most %d are allowed", len(id), maxVolumeIDBytes)
	case path == "" && field == fieldVolumePath:
		return healer.Volume{}, healer.Invalid(field, "is required")
	}
	if err := cmp.Or(r.path(field, path), r.path(fieldStaging, staging)); err != nil {
		return healer.Volume{}, err
	}
	return healer.Volume{ID: id, Path: path, StagingPath: staging}, nil
}

func (r rules) path(field, p string) error {
	switch {
	case p == "": // not named
		return nil
	case !strings.HasPrefix(p, "/"):
		return healer.Invalid(field, "must be an absolute path, got %s", quoted(p))
	case len(p) > maxPathBytes:
		return healer.Invalid(field, "has %d bytes, at most %d are allowed", len(p), maxPathBytes)
	case !utf8.ValidString(p) || strings.ContainsFunc(p, unicode.IsControl):
		return healer.Invalid(field, "must not contain control characters, got %s", quoted(p))
	case path.Clean(p) != p:
		return healer.Invalid(field, "must be a clean path, without \"..\", \".\", \"//\" and a final slash, got %s", quoted(p))
	}
	for component := range strings.SplitSeq(p, "/") {
		if len(component) > maxComponentBytes {
			return healer.Invalid(field, "has a component of %d bytes, at most %d are allowed", len(component), maxComponentBytes)
		}
	}
	if !slices.ContainsFunc(r.roots, func(root string) bool { return strings.HasPrefix(p, root+"/") }) {
		return healer.Invalid(field, "must be beneath the kubelet root or a --path-root, got %s", quoted(p))
	}
	return nil
}

// smallMap bounds a map. Its error has nothing of the map, not even keys.
func smallMap(field string, m map[string]string) error {
	if _, empty := m[""]; empty {
		return healer.Invalid(field, "must not have an empty key")
	}
	size := 0
	for k, v := range m {
		size += len(k) + len(v)
	}
	if size > maxMapBytes {
		return healer.Invalid(field, "has %d bytes in keys and values, at most %d are allowed", size, maxMapBytes)
	}
	return nil
}
