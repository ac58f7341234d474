package healer

import (
	"fmt"
	"slices"
	"strings"
)

// Volume is what a request names, validated as far as its text alone allows.
type Volume struct {
	// ID is the volume_id, opaque and never part of a path.
	ID string
	// Path is the volume_path: absolute, clean and beneath a known root.
	Path string
	// StagingPath is the staging_target_path; empty when the driver stages
	// nothing or the caller did not name it.
	StagingPath string
	// Unasked is whether no caller named Path: there was no call for a check or heal, or
	// one that names the volume by its ID alone. Nothing then says that an
	// empty volume_path should be mounted, as its caller would: the pod may be starting
	// or ending.
	Unasked bool
	// Published are the paths at which kubelet's files name the volume as published, as far
	// as who asks has looked for them.
	Published []string
	// Routine is true where nothing calls for an answer at once.
	Routine bool
	// Named is true where a caller named this volume, and not a turn of the loop or of
	// kubelet's: a FUSE daemon is then asked for what it cannot know by heart.
	Named bool
	// ReadersOnly is true where its PersistentVolumes are ReadOnlyMany: drivers stage it
	// read-only then.
	ReadersOnly bool
	// Capability is nil when the request carries none.
	Capability *Capability
	// What follows is the caller's, and always empty in a cluster, where the API says how a
	// volume is used. MountFlags and MountGroup are those of the request's capability; flags
	// may hold secrets, too.
	MountFlags SecretList
	MountGroup string
	// Secrets and Context come from the request as they are. Neither may be
	// printed.
	Secrets Secrets
	Context Secrets
}

// AccessType says how a workload uses a volume.
type AccessType string

// The access types of a CSI VolumeCapability.
const (
	AccessMount AccessType = "mount"
	AccessBlock AccessType = "block"
)

// Capability is the part of a CSI VolumeCapability that decides what healthy
// means for the volume.
type Capability struct {
	Access AccessType
	// ReadOnly is true for the reader-only access modes and for a mount flag
	// "ro": a read-only superblock is then intended.
	ReadOnly bool
	// AccessMode is the name that CSI gives it.
	AccessMode string
	// FSType is empty when the caller leaves it open.
	FSType string
}

// Secrets is a map whose values never appear in a log, an error or a message:
// every way to print it yields [redacted].
type Secrets map[string]string

const redacted = "[redacted]"

// String implements fmt.Stringer, which loggers look for.
func (Secrets) String() string { return redacted }

// Format implements fmt.Formatter, so that no verb reaches the map.
func (Secrets) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(redacted)) }

// MarshalText implements encoding.TextMarshaler, which encoding/json uses, too.
func (Secrets) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// shownFrom is the shortest secret that is looked for: shorter ones occur in any text.
const shownFrom = 4

// ShownIn reports whether a text has one of the secrets in it as it is.
func (s Secrets) ShownIn(texts []string) bool {
	for _, value := range s {
		if len(value) >= shownFrom && slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(text, value) }) {
			return true
		}
	}
	return false
}

// SecretList is a list whose values are never printed, as those of Secrets.
type SecretList []string

func (SecretList) String() string { return redacted }

// Format implements fmt.Formatter.
func (SecretList) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(redacted)) }

// MarshalText implements encoding.TextMarshaler.
func (SecretList) MarshalText() ([]byte, error) { return []byte(redacted), nil }
