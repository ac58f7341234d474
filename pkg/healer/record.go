package healer

import (
	"cmp"
	"slices"
	"time"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// RecordVersion is the format that this build writes and reads.
const RecordVersion = 2

// Record is what a volume looked like when it could last be used, and what it is
// compared with, from when it was last healthy. Only the engine writes it. It never
// holds a secret, a volume_context value or a filesystem option.
type Record struct {
	Version  int    `json:"version"`
	Driver   string `json:"driver"`
	VolumeID string `json:"volumeID"`
	// BootID says for which boot the device numbers and mount ids in the record hold:
	// they are addresses that do not survive a boot.
	BootID string `json:"bootID"`
	FSType string `json:"fsType"`
	Source string `json:"source"`
	// Identity is empty for filesystems without a block device.
	Identity facts.Identity `json:"identity"`
	// DiskSeq shows whether a device number was given to another disk in this boot.
	DiskSeq uint64 `json:"diskSeq,omitempty"`
	// FilesystemErrors is what the filesystem had counted: such counts are kept on the
	// disk, so only a higher one is a new error.
	FilesystemErrors uint64 `json:"filesystemErrors,omitempty"`

	MountPoints []MountPointRecord `json:"mountPoints"`
	// LastSeen is the time of this record.
	LastSeen time.Time `json:"lastSeen,omitzero"`
	// Newest is a unique mount id that was the highest in the kernel when this was
	// seen: a mount with a lower one and a recorded device is the volume's.
	Newest uint64 `json:"newest,omitempty"`
	// Previous are superblocks that the volume had and that containers may still have
	// mounted.
	Previous []PreviousSuperblock `json:"previous,omitempty"`
	// Restaging is true from before a step has the driver stage the volume anew, in this
	// boot, until what is staged has answered: the staging mount point may be bare, or
	// become so when a daemon gives up that has not served yet.
	Restaging bool `json:"restaging,omitempty"`
	// RestagingSince is when the first such step began, in time since the boot.
	RestagingSince time.Duration `json:"restagingSinceBoot,omitempty"`
	// PendingStage and PendingHeal are what the driver may still be at work on in this
	// boot, of steps of the costs Restage and Delegate.
	PendingStage PendingCall `json:"pendingStage,omitzero"`
	PendingHeal  PendingCall `json:"pendingHeal,omitzero"`
}

// PreviousSuperblock is a filesystem instance that the volume had earlier in this
// boot. Its device number alone proves nothing: the kernel gives it to another
// filesystem when the last mount is gone.
type PreviousSuperblock struct {
	Dev    facts.Dev `json:"dev"`
	BootID string    `json:"bootID"`
	// Mounts are those in containers that were seen while it was proven to be the
	// volume's, with what an interrupted replacement of one has to give back.
	Mounts []PreviousMount `json:"mounts,omitempty"`
	// Newest is the highest unique mount id seen while the device number was this
	// superblock's: a mount with the number and no higher id is the volume's.
	Newest uint64 `json:"newest,omitempty"`
	// Since is when the volume got another one, in time since the boot.
	Since time.Duration `json:"sinceBoot"`
	// Ended is true when it had shut itself down, although it answers.
	Ended bool `json:"ended,omitempty"`
}

// Same reports whether both say the same except for the times.
func (r Record) Same(o Record) bool {
	return r.Version == o.Version && r.Driver == o.Driver && r.VolumeID == o.VolumeID && r.BootID == o.BootID &&
		r.FSType == o.FSType && r.Source == o.Source && r.Identity == o.Identity && r.DiskSeq == o.DiskSeq &&
		r.FilesystemErrors == o.FilesystemErrors && r.Restaging == o.Restaging &&
		r.PendingStage == o.PendingStage && r.PendingHeal == o.PendingHeal && slices.Equal(r.MountPoints, o.MountPoints) &&
		slices.EqualFunc(r.Previous, o.Previous, func(a, b PreviousSuperblock) bool {
			return a.Dev == b.Dev && a.Ended == b.Ended && slices.Equal(a.Mounts, b.Mounts)
		})
}

// PreviousMount is a mount of a previous superblock in a container.
type PreviousMount struct {
	// ID is the kernel's unique mount id.
	ID uint64 `json:"id"`
	// Namespace is the inode number of the mount namespace, Path the mount point in
	// it.
	Namespace uint64     `json:"namespace"`
	Path      string     `json:"path"`
	Attr      facts.Attr `json:"attributes"`
	// Sharing is how it shared mount events: the kernel forgets whose slave it was when
	// the host's mount is gone.
	Sharing facts.Sharing `json:"sharing"`
}

// MountPointRecord is one mount point of a healthy volume.
type MountPointRecord struct {
	Role Role   `json:"role"`
	Path string `json:"path"`
	// Root is the directory of the filesystem that the mount point shows.
	Root        string            `json:"root"`
	Attr        facts.Attr        `json:"attributes"`
	Propagation facts.Propagation `json:"propagation"`
	// ReadOnlySuper is true when the superblock was read-only while healthy.
	ReadOnlySuper bool `json:"readOnlySuperblock"`
	// Dev is the superblock's device, for a raw block volume the device itself.
	Dev facts.Dev `json:"dev"`
	// Newest counts in place of the record's own where the superblock is at none of the volume's mount
	// points any more: the number may be another volume's by now.
	Newest uint64 `json:"newest,omitempty"`
	// MountID is the kernel's unique mount id; 0 where the mount table
	// has none (below Linux 6.8).
	MountID uint64 `json:"mountID"`
	// Source is that of a mount without a device: on NFS the root directory is "/" whichever directory
	// of the server is mounted. Empty for all others, and for those but NFS that an earlier build recorded.
	Source string `json:"source,omitempty"`
	// HadBlocks and HadInodes are true when a block and an inode were left for an
	// unprivileged writer once: some filesystems never report any, and work.
	HadBlocks bool `json:"hadBlocks,omitempty"`
	HadInodes bool `json:"hadInodes,omitempty"`
	// Since is when this mount came instead of another one, and Away when that was
	// last seen there, both in time since the boot: as long as a container that
	// started in between has something else, or may not have been found yet.
	Since time.Duration `json:"sinceBoot,omitempty"`
	Away  time.Duration `json:"awaySinceBoot,omitempty"`
}

// MountPoint returns the record of a mount point, nil for none.
func (r *Record) MountPoint(path string) *MountPointRecord {
	return r.first(func(p MountPointRecord) bool { return p.Path == path })
}

// WasWritable reports whether this very disk, by its sequence number in this boot, is recorded as not write-protected.
func (r *Record) WasWritable(bootID string, diskSeq uint64) bool {
	return r != nil && r.BootID == bootID && diskSeq != 0 && r.DiskSeq == diskSeq &&
		slices.ContainsFunc(r.MountPoints, func(p MountPointRecord) bool { return !p.ReadOnlySuper })
}

// Staged returns the record of the staging mount point, nil for none.
func (r *Record) Staged() *MountPointRecord {
	return r.first(func(p MountPointRecord) bool { return p.Role == RoleStaging })
}

// HasDev reports whether a recorded mount point has a superblock.
func (r Record) HasDev(dev facts.Dev) bool {
	return slices.ContainsFunc(r.MountPoints, func(p MountPointRecord) bool { return p.Dev == dev })
}

// NewestOf returns the highest unique mount id that was seen while a recorded superblock was the volume's; 0 for
// none.
func (r Record) NewestOf(dev facts.Dev) (newest uint64) {
	for _, p := range r.MountPoints {
		if p.Dev == dev {
			newest = max(newest, cmp.Or(p.Newest, r.Newest))
		}
	}
	return newest
}

func (r *Record) first(is func(MountPointRecord) bool) *MountPointRecord {
	if r == nil || !slices.ContainsFunc(r.MountPoints, is) {
		return nil
	}
	return &r.MountPoints[slices.IndexFunc(r.MountPoints, is)]
}
