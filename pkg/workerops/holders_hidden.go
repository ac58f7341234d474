package workerops

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/mount"
)

// Mount namespaces in which no process lives: something keeps them, such as a
// bind mount of their file or an open descriptor, and their mounts hold their
// superblocks like any other. Procfs does not show them. Linux 6.12 walks over
// all of them (NS_MNT_GET_NEXT in ioctl_nsfs(2)); an older kernel hides them.

// namespaceInfo is struct mnt_ns_info of include/uapi/linux/nsfs.h.
type namespaceInfo struct {
	Size   uint32
	Mounts uint32
	ID     uint64
}

const (
	namespaceNext = 0x8010b70b // NS_MNT_GET_NEXT
	namespacePrev = 0x8010b70c // NS_MNT_GET_PREV
	namespaceSelf = 0x8010b70a // NS_MNT_GET_INFO
)

// hidden is a namespace whose mounts procfs did not tell.
type hidden struct {
	inode, id uint64
}

// readHidden reads the mounts of all namespaces that are not known as a whole.
func (s *scan) readHidden() {
	each(s, s.hiddenNamespaces(), func(h hidden) []spot {
		return mountsOf(h.id)
	}, func(h hidden, spots []spot, ok bool) {
		if !ok {
			s.answer.Cut = true
			return
		}
		sp := s.spaces[h.inode]
		if sp == nil {
			sp = &space{}
			s.spaces[h.inode] = sp
		}
		sp.whole = true
		sp.keep(s, spots)
	})
}

// hiddenNamespaces walks over all mount namespaces. It finds none where the
// kernel or our privileges do not allow it.
func (s *scan) hiddenNamespaces() (all []hidden) {
	own, err := retryEINTR(func() (int, error) {
		return unix.Openat(s.proc, "thread-self/ns/mnt", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil
	}
	// From ours in both directions.
	for _, direction := range []uintptr{namespacePrev, namespaceNext} {
		at, err := unix.FcntlInt(uintptr(own), unix.F_DUPFD_CLOEXEC, 0)
		for err == nil {
			var next int
			if next, err = neighbour(at, direction); err == nil {
				_ = unix.Close(at)
				at = next
				all = s.appendHidden(all, at)
			}
		}
		_ = unix.Close(at)
	}
	all = s.appendHidden(all, own)
	_ = unix.Close(own)
	return all
}

func (s *scan) appendHidden(all []hidden, fd int) []hidden {
	var st unix.Stat_t
	info := namespaceInfo{Size: uint32(unsafe.Sizeof(namespaceInfo{}))}
	if unix.Fstat(fd, &st) != nil {
		return all
	}
	if sp := s.spaces[st.Ino]; sp != nil && sp.whole || s.owners != nil && !s.owners.host.Owns(fd) {
		return all
	}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), namespaceSelf, uintptr(unsafe.Pointer(&info))); errno != 0 {
		return all
	}
	return append(all, hidden{inode: st.Ino, id: info.ID})
}

func neighbour(fd int, direction uintptr) (int, error) {
	info := namespaceInfo{Size: uint32(unsafe.Sizeof(namespaceInfo{}))}
	next, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), direction, uintptr(unsafe.Pointer(&info)))
	if errno != 0 {
		return -1, errno
	}
	return int(next), nil
}

// mountsOf lists the mounts of a namespace.
func mountsOf(namespace uint64) (all []spot) {
	ids, _ := mount.ListAll(namespace, mount.Lowest(namespace))
	var buf mount.Buffer
	for _, id := range ids[:min(len(ids), maxMountsRead)] {
		m, err := mount.Stat(namespace, id, mount.Superblock|mount.Basic|mount.Point, &buf)
		if err == nil { // not unmounted since it was listed
			all = append(all, spot{id: m.OldID, path: m.Path, mounted: mounted{dev: Number(m.Dev)}})
		}
	}
	return all
}
