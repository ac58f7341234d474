package ops

import (
	"fmt"
	"math/rand/v2"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// lookUp asks what is mounted at a path for a name that cannot exist in it. A FUSE daemon answers
// for its root from memory; for a name that nobody has asked for before it has to ask its storage,
// unless it knows all names. It is asked in a detached clone, as by probe; the kernel holds the lock
// of the root directory until the daemon answers.
func lookUp(q ProbeQuery) (facts.Lookup, error) {
	clone, op, err := q.clone()
	switch {
	case op == opClone && errnoOf(err) == unix.EINVAL:
		return facts.Lookup{}, nil // it was just unmounted
	case err != nil:
		return facts.Lookup{}, fmt.Errorf("%s: %w", op, err)
	}
	defer unix.Close(clone)
	var st unix.Statx_t
	// From memory: whether the daemon answers for its root has been asked.
	if err := unix.Statx(clone, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &st); err != nil {
		return facts.Lookup{}, fmt.Errorf("statx: %w", err)
	}
	if q.Superblock != (facts.Dev{Major: st.Dev_major, Minor: st.Dev_minor}) {
		return facts.Lookup{}, nil // another filesystem is mounted there by now
	}
	name := fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64()) //nolint:gosec // nobody has to guess it
	err = unix.Statx(clone, name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE, &st)
	return facts.Lookup{Asked: true, Errno: errnoOf(err)}, nil
}
