package touch

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/touch/mountinfo"
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

// refOf identifies the mount that a descriptor is on. The old id comes from
// fdinfo, which asks no filesystem; the unique one needs a statx that a dead
// filesystem may refuse, and stays 0 then.
func refOf(fd int) (MountRef, error) {
	var ref MountRef
	raw, err := os.ReadFile(fmt.Sprintf("/proc/thread-self/fdinfo/%d", fd))
	if err != nil {
		return ref, err
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
	ref, err := refOf(fd)
	if err != nil {
		_ = unix.Close(fd)
		return -1, MountRef{}, err
	}
	return fd, ref, nil
}

// parentOf reads from mountinfo which mount the given one stands on.
func parentOf(m MountRef) (MountRef, error) {
	f, err := os.Open("/proc/thread-self/mountinfo")
	if err != nil {
		return MountRef{}, err
	}
	defer f.Close()
	var parent MountRef
	err = mountinfo.Parse(f, func(e mountinfo.Entry) error {
		if e.ID == m.OldID {
			parent.OldID = e.Parent
		}
		return nil
	})
	if err == nil && parent.OldID == 0 {
		err = refuse("%s is no longer in the mount table", m)
	}
	return parent, err
}
