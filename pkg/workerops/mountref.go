package workerops

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/worker"
	"github.com/csi-addons/node-healer/pkg/workerops/mountinfo"
)

// MountRef names one mount.
type MountRef struct {
	// ID is the unique mount id (Linux 6.8); 0 when unknown.
	ID uint64
	// OldID is mountinfo's id, which the kernel reuses; 0 when unknown.
	OldID int
}

// Same is true when both name the same mount.
func (m MountRef) Same(o MountRef) bool {
	if m.ID != 0 && o.ID != 0 {
		return m.ID == o.ID
	}
	return m.OldID != 0 && m.OldID == o.OldID
}

// String names the mount in messages.
func (m MountRef) String() string {
	if m.ID != 0 {
		return fmt.Sprintf("mount %#x", m.ID)
	}
	return fmt.Sprintf("mount %d", m.OldID)
}

// self is the calling thread's directory in procfs. A thread that entered a
// container's mount namespace sees the container's own procfs, if there is one,
// and brings the directory along; the zero value is for all others.
type self struct{ dir *os.File }

func (s self) open(name string) (*os.File, error) {
	if s.dir == nil {
		return os.Open("/proc/thread-self/" + name)
	}
	fd, err := retryEINTR(func() (int, error) {
		return unix.Openat(int(s.dir.Fd()), name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, fmt.Errorf("open %s of the thread: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

func refOf(fd int) (MountRef, error)        { return self{}.refOf(fd) }
func parentOf(m MountRef) (MountRef, error) { return self{}.parentOf(m) }

// refOf identifies the mount that a descriptor is on. The old id comes from
// fdinfo, which asks no filesystem; the unique one needs a statx that a dead
// filesystem may refuse, and stays 0 then.
func (s self) refOf(fd int) (MountRef, error) {
	var ref MountRef
	f, err := s.open("fdinfo/" + strconv.Itoa(fd))
	if err != nil {
		return ref, err
	}
	defer f.Close()
	raw, err := io.ReadAll(f)
	if err != nil {
		return ref, fmt.Errorf("fdinfo: %w", err)
	}
	for line := range strings.Lines(string(raw)) {
		if v, ok := strings.CutPrefix(line, "mnt_id:"); ok {
			if ref.OldID, err = strconv.Atoi(strings.TrimSpace(v)); err != nil {
				return ref, fmt.Errorf("fdinfo: %w", err)
			}
		}
	}
	if ref.OldID == 0 {
		return ref, errors.New("fdinfo shows no mnt_id")
	}
	ref.ID = uniqueID(fd, "", unix.AT_EMPTY_PATH)
	return ref, nil
}

// uniqueID gives the unique id of the mount a path ends on, 0 when the kernel
// or the filesystem does not tell.
func uniqueID(dir int, name string, flags int) uint64 {
	var st unix.Statx_t
	flags |= unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
	if unix.Statx(dir, name, flags, unix.STATX_MNT_ID_UNIQUE, &st) != nil || st.Mask&unix.STATX_MNT_ID_UNIQUE == 0 {
		return 0
	}
	return st.Mnt_id
}

// top opens whatever stands topmost at the leaf, without following a link and
// without touching the storage.
func (l leaf) top() (int, MountRef, error) {
	fd, err := retryEINTR(func() (int, error) {
		return unix.OpenTree(l.dir, l.name,
			unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT)
	})
	if err != nil {
		return -1, MountRef{}, err
	}
	ref, err := l.self.refOf(fd)
	if err != nil {
		_ = unix.Close(fd)
		return -1, MountRef{}, err
	}
	return fd, ref, nil
}

// errNotMounted says that a mount is no longer in the mount table.
var errNotMounted = errors.New("no longer in the mount table")

// table reads the thread's mount table.
func (s self) table(visit func(mountinfo.Entry)) error {
	f, err := s.open("mountinfo")
	if err != nil {
		return err
	}
	defer f.Close()
	return mountinfo.Parse(f, func(e mountinfo.Entry) error { visit(e); return nil })
}

// entry gives a mount's line of the mount table; the zero value if it has none.
func (s self) entry(m MountRef) (found mountinfo.Entry, _ error) {
	err := s.table(func(e mountinfo.Entry) {
		if e.ID == m.OldID {
			found = e
		}
	})
	return found, err
}

// parentOf says which mount the given one stands on. The kernel gives an old id to
// the next mount at once, so where there are unique ones it is asked for that.
func (s self) parentOf(m MountRef) (MountRef, error) {
	if m.ID != 0 {
		switch parent, err := statParent(m.ID); {
		case err == nil:
			return parent, nil
		case errors.Is(err, unix.ENOENT):
			return MountRef{}, fmt.Errorf("%w: %s is %w", worker.ErrRefused, m, errNotMounted)
		}
	}
	var parent MountRef
	err := s.table(func(e mountinfo.Entry) {
		if e.ID == m.OldID {
			parent.OldID = e.Parent
		}
	})
	if err == nil && parent.OldID == 0 {
		err = fmt.Errorf("%w: %s is %w", worker.ErrRefused, m, errNotMounted)
	}
	return parent, err
}

// statParent asks which mount another one stands on.
func statParent(id uint64) (MountRef, error) {
	reply, err := statMount(id)
	return MountRef{ID: reply.ParentID, OldID: int(reply.OldParent)}, err
}

// statMount asks statmount(2) (Linux 6.8) about a mount of the thread's namespace.
func statMount(id uint64) (reply mountStatus, _ error) {
	req := mountIDRequest{Mount: id, Param: statMountBasic}
	req.Size = uint32(unsafe.Sizeof(req))
	_, _, errno := unix.Syscall6(unix.SYS_STATMOUNT, uintptr(unsafe.Pointer(&req)),
		uintptr(unsafe.Pointer(&reply)), unsafe.Sizeof(reply), 0, 0, 0)
	runtime.KeepAlive(&req)
	switch {
	case errno != 0:
		return reply, fmt.Errorf("statmount: %w", errno)
	case reply.Mask&statMountBasic == 0:
		return reply, fmt.Errorf("statmount: %w", unix.ENOSYS)
	}
	return reply, nil
}

// carriesNone is true when listmount(2) (Linux 6.8) shows nothing on a mount of
// the thread's namespace.
func carriesNone(id uint64) bool {
	var first uint64
	req := mountIDRequest{Mount: id}
	req.Size = uint32(unsafe.Sizeof(req))
	n, _, errno := unix.Syscall6(unix.SYS_LISTMOUNT, uintptr(unsafe.Pointer(&req)),
		uintptr(unsafe.Pointer(&first)), 1, 0, 0, 0)
	runtime.KeepAlive(&req)
	return errno == 0 && n == 0
}

// gone is true when a mount is no longer in the mount table.
func (s self) gone(m MountRef) bool {
	_, err := s.parentOf(m)
	return errors.Is(err, errNotMounted)
}

// standOn gives the mounts that stand on the given one, wherever in it.
func (s self) standOn(m MountRef) (found []mountinfo.Entry, err error) {
	if m.ID != 0 && carriesNone(m.ID) {
		return nil, nil
	}
	err = s.table(func(e mountinfo.Entry) {
		if e.Parent == m.OldID && e.ID != m.OldID {
			found = append(found, e)
		}
	})
	return found, err
}
