package workerops

// mountIDRequest is struct mnt_id_req of include/uapi/linux/mount.h, version 1.
type mountIDRequest struct {
	Size      uint32
	_         uint32
	Mount     uint64
	Param     uint64
	Namespace uint64
}

// mountStatus is struct statmount up to what is read of it; the strings start
// at mountStrings.
type mountStatus struct {
	_         [8]byte
	Mask      uint64
	Major     uint32
	Minor     uint32
	_         [16]byte
	ID        uint64
	ParentID  uint64
	OldID     uint32
	OldParent uint32
	Attr      uint64
	_         [mountStrings - 72]byte
}

const (
	mountStrings   = 512
	statMountBasic = 0x2        // STATMOUNT_MNT_BASIC
	allMounts      = ^uint64(0) // LSMT_ROOT
)
