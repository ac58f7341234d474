package ops

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// uuidBytes is the length of a filesystem UUID.
const uuidBytes = 16

// ior is _IOR(kind, number, size) of linux/ioctl.h. The bits of the direction differ
// between architectures; an ioctl of x/sys/unix has them.
func ior(kind byte, number, size uint) uint {
	const direction = unix.BLKGETDISKSEQ & 0xe0000000
	return direction | size<<16 | uint(kind)<<8 | number
}

// The ways to ask a mounted filesystem for its UUID: the common one (Linux
// 6.9), and what ext4 (6.0), xfs and btrfs had before. Each fills a buffer of
// the given size, with the UUID at an offset.
var uuidQueries = []struct {
	ioctl    uint
	size, at int
	// length is how the structure begins, before and after, where it has the length of the UUID.
	length []byte
}{
	// FS_IOC_GETFSUUID, struct fsuuid2: u8 len, u8 uuid[16].
	{ioctl: ior(0x15, 0, 17), size: 17, at: 1, length: []byte{uuidBytes}},
	// EXT4_IOC_GETFSUUID, struct fsuuid: u32 len, u32 flags, u8 uuid[].
	{ioctl: ior('f', 44, 8), size: 24, at: 8, length: binary.NativeEndian.AppendUint32(nil, uuidBytes)},
	// XFS_IOC_FSGEOMETRY_V1, struct xfs_fsop_geom_v1.
	{ioctl: ior('X', 100, 112), size: 112, at: 64},
	// BTRFS_IOC_FS_INFO, struct btrfs_ioctl_fs_info_args.
	{ioctl: btrfsInfo, size: 1024, at: 16},
}

// btrfsInfo is BTRFS_IOC_FS_INFO.
var btrfsInfo = ior(0x94, 31, 1024)

// filesystemUUID returns the UUID of the filesystem that a descriptor is on,
// empty when it has none or does not tell.
func filesystemUUID(fd int) string {
	for i := range uuidQueries {
		if uuid := askUUID(fd, i); uuid != "" {
			return uuid
		}
	}
	return ""
}

// btrfsDevices returns the number of devices of a mounted btrfs, 0 when it does
// not tell: struct btrfs_ioctl_fs_info_args, u64 max_id, u64 num_devices.
func btrfsDevices(fd int) uint64 {
	buf := make([]byte, 1024)
	if err := ioctl(fd, btrfsInfo, unsafe.Pointer(&buf[0])); err != nil {
		return 0
	}
	return binary.NativeEndian.Uint64(buf[8:])
}

func askUUID(fd, query int) string {
	q := uuidQueries[query]
	buf := make([]byte, q.size)
	copy(buf, q.length)
	if q.ioctl == btrfsInfo { // u64 flags: BTRFS_FS_INFO_FLAG_METADATA_UUID
		binary.NativeEndian.PutUint64(buf[48:], 1<<2)
	}
	if err := ioctl(fd, q.ioctl, unsafe.Pointer(&buf[0])); err != nil || !bytes.HasPrefix(buf, q.length) {
		return ""
	}
	uuid := uuidText(buf[q.at:])
	if q.ioctl != btrfsInfo {
		return uuid
	}
	if made, err := os.ReadFile("/sys/fs/btrfs/" + uuid + "/temp_fsid"); err == nil && string(made) == "1\n" {
		// Of a clone beside its origin the kernel (6.7) makes a UUID up at each mount; this is the one on the disk.
		uuid = uuidText(buf[64:])
	}
	return uuid
}

// uuidText returns the UUID at the start of b as text, empty for none.
func uuidText(b []byte) string {
	uuid := [uuidBytes]byte(b)
	if uuid == ([uuidBytes]byte{}) {
		return ""
	}
	return fmt.Sprintf("%x-%x-%x-%x-%x", uuid[:4], uuid[4:6], uuid[6:8], uuid[8:10], uuid[10:])
}
