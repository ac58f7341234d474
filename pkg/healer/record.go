package healer

import (
	"slices"
	"time"

	"github.com/csi-addons/node-healer/pkg/host"
)

// RecordVersion is the format that this build reads and writes.
const RecordVersion = 1

// Record is what a volume looked like when it was last healthy. Only the
// engine writes it, and only after a healthy observation. It never holds a
// secret, a volume_context value or a filesystem option.
type Record struct {
	Version  int    `json:"version"`
	Driver   string `json:"driver"`
	VolumeID string `json:"volumeID"`
	// BootID tells whether device numbers and mount ids in the record still
	// mean anything: they are addresses that do not survive a boot.
	BootID string `json:"bootID"`
	FSType string `json:"fsType"`
	Source string `json:"source"`
	// Identity is empty for filesystems without a block device.
	Identity host.Identity `json:"identity"`
	// DiskSeq tells a reused device number within one boot.
	DiskSeq uint64 `json:"diskSeq,omitempty"`
	// FilesystemErrors is what the filesystem had counted: such counts live on
	// the disk, and old ones are no news.
	FilesystemErrors uint64        `json:"filesystemErrors,omitempty"`
	Places           []PlaceRecord `json:"places"`
	LastHealthy      time.Time     `json:"lastHealthy"`
}

// same is true when both say the same but for the time.
func (r Record) same(o Record) bool {
	return r.Version == o.Version && r.Driver == o.Driver && r.VolumeID == o.VolumeID && r.BootID == o.BootID &&
		r.FSType == o.FSType && r.Source == o.Source && r.Identity == o.Identity && r.DiskSeq == o.DiskSeq &&
		r.FilesystemErrors == o.FilesystemErrors && slices.Equal(r.Places, o.Places)
}

// PlaceRecord is one place of a healthy volume.
type PlaceRecord struct {
	Role Role   `json:"role"`
	Path string `json:"path"`
	// Root is the directory of the filesystem that the place shows.
	Root        string           `json:"root"`
	Attr        host.Attr        `json:"attributes"`
	Propagation host.Propagation `json:"propagation"`
	// ReadOnlySuper is true when the superblock was read-only while healthy.
	ReadOnlySuper bool `json:"readOnlySuperblock"`
	// Dev is the superblock's device, for a raw block volume the device itself.
	Dev host.Dev `json:"dev"`
	// MountID is the kernel's unique mount id; 0 where the mount table
	// comes from mountinfo (below Linux 6.13).
	MountID uint64 `json:"mountID"`
}

// Place finds the record of a place.
func (r *Record) Place(path string) *PlaceRecord {
	if r == nil {
		return nil
	}
	for i := range r.Places {
		if r.Places[i].Path == path {
			return &r.Places[i]
		}
	}
	return nil
}

// Staged finds the record of the staged place.
func (r *Record) Staged() *PlaceRecord {
	if r == nil {
		return nil
	}
	for i := range r.Places {
		if r.Places[i].Role == Staged {
			return &r.Places[i]
		}
	}
	return nil
}
