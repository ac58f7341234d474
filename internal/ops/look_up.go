package ops

import (
	"fmt"
	"math/rand/v2"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// LookUpQuery asks what is mounted at a path for a name that cannot exist in it. A FUSE
// daemon answers for its root from memory; for a name that nobody has asked for before it has
// to ask its storage, unless it knows all names.
type LookUpQuery struct {
	// Path, Superblock and Around are those of a ProbeQuery.
	Path       string
	Superblock facts.Dev
	Around     bool
}

// LookUpAnswer is the answer.
type LookUpAnswer struct {
	// Changed is true when another filesystem is mounted there by now, or none.
	Changed bool
	// Errno is ENOENT where all is well, and 0 where such a name exists.
	Errno syscall.Errno
}

// lookUp asks a detached clone, as probe does. The kernel holds the lock of the root directory
// until the daemon answers.
func lookUp(q LookUpQuery) (LookUpAnswer, error) {
	reach := cloneAt
	if q.Around {
		reach = cloneAround
	}
	clone, op, err := reach(q.Path)
	switch {
	case op == opClone && errnoOf(err) == unix.EINVAL:
		return LookUpAnswer{Changed: true}, nil // it was just unmounted
	case err != nil:
		return LookUpAnswer{}, fmt.Errorf("%s: %w", op, err)
	}
	defer unix.Close(clone)
	var st unix.Statx_t
	// From memory: whether the daemon answers for its root has been asked.
	if err := unix.Statx(clone, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &st); err != nil {
		return LookUpAnswer{}, fmt.Errorf("statx: %w", err)
	}
	if q.Superblock != (facts.Dev{Major: st.Dev_major, Minor: st.Dev_minor}) {
		return LookUpAnswer{Changed: true}, nil
	}
	name := fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64()) //nolint:gosec // nobody has to guess it
	err = unix.Statx(clone, name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE, &st)
	return LookUpAnswer{Errno: errnoOf(err)}, nil
}
