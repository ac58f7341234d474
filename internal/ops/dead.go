package ops

import (
	"errors"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/mount"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// Dead is a dead mount.
type Dead struct {
	facts.Mount
	// Ended is true where the kernel's facts show that the filesystem has ended, as an
	// ext4 that shut itself down and still answers from memory. Any other dead mount must
	// not answer right before it is replaced.
	Ended bool
	// Stale is true for a mount of NFS, which has to answer ESTALE: NFS mounts of one server
	// share a superblock, also one that was mounted after the directory of another one was
	// made anew on the server. So the superblock does not tell the dead mount from a living
	// one: only the root of the mount does, asked right before.
	Stale bool
}

// check refuses when the mount at the mount point is not dead. One of NFS has to be topmost, of its
// superblock, and without a root that the server knows.
func (d Dead) check(at targetHandle) error {
	if !d.Stale {
		if d.Ended {
			return nil
		}
		return stillDead(d.FSType, at.answers())
	}
	fd, err := at.open(d.Ref())
	switch {
	case errors.Is(err, unix.ESTALE):
		// Once the kernel knows that the directory has no name any more, a path walk to it
		// asks the server, and there is no other way to it than a path walk.
		return refuse("no path leads to it any more: %v", err)
	case err != nil:
		return err
	}
	defer unix.Close(fd)
	if err := d.checkType(at.thread, facts.NFS); err != nil {
		return err
	}
	return checkStaleTwice(fd)
}

// stillDead refuses a filesystem that answers again, by the errno of answers, and one that may
// work for others. An errno because this process has run out of descriptors or memory says
// nothing of the filesystem.
func stillDead(fsType string, errno syscall.Errno) error {
	switch {
	case errno == 0:
		return refuse("it answers again")
	case facts.MayWork(fsType, errno):
		return refuse("it answers %q, and may work for others", errno)
	}
	return ownShortage(errno)
}

// checkFUSE refuses the mount that fd is on if it is not of the FUSE superblock that was meant,
// or if the errno of a statx of its root is not as the rule says.
func (d Dead) checkFUSE(t thread, fd int, rule func(syscall.Errno) bool, refusal string) error {
	if err := d.checkType(t, facts.FUSE); err != nil {
		return err
	}
	if errno := answers(fd); !rule(errno) {
		return refuse(refusal, errno)
	}
	return nil
}

// checkType refuses when the dead mount is not of that kind of filesystem and its superblock: a
// mount id alone may be another mount's by now (below Linux 6.8).
func (d Dead) checkType(t thread, want facts.Traits) error {
	m, err := t.entry(d.Ref())
	if err == nil && (m.Dev != d.Dev || !facts.IsType(m.FSType, want)) {
		err = refuse("another filesystem is at the mount point now")
	}
	return err
}

// checkStaleTwice asks the server about a directory, twice. Only ESTALE says that it is
// gone: whatever else goes wrong may pass.
func checkStaleTwice(fd int) error {
	for range 2 {
		switch errno := answers(fd); errno {
		case unix.ESTALE:
		case 0:
			return refuse("it answers again")
		default:
			return refuse("only what answers ESTALE is replaced, and this answers %q", errno)
		}
	}
	return nil
}

// answers asks the filesystem that is topmost at the target for its root, past the kernel's
// memory (AT_STATX_FORCE_SYNC); 0 if it answers.
func (h targetHandle) answers() syscall.Errno {
	fd, err := openBeneath(h.dir, h.name, 0)
	if err != nil {
		return errnoOf(err)
	}
	defer unix.Close(fd)
	return answers(fd)
}

// answers leaves it to its callers what EINTR says: a daemon may give it to every question.
func answers(fd int) syscall.Errno {
	var st unix.Statx_t
	return errnoOf(unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_FORCE_SYNC, unix.STATX_BASIC_STATS, &st))
}

// isCopy reports whether m is a copy that propagation made of the dead mount. Of NFS another
// mount of the same superblock may work: there a copy is one that is in the peer group of the
// dead mount, or follows that.
func (d Dead) isCopy(dead, m facts.Mount) bool {
	if m.Dev != d.Dev {
		return false
	}
	group := dead.Propagation.Shared
	return !facts.IsType(m.FSType, facts.NFS) || group != 0 && (m.Propagation.Shared == group || m.Propagation.Master == group)
}

// checkTakesOnly refuses when a umount of m would take by propagation another mount than copies of m:
// a driver's own, say, in its mount namespace.
func (h targetHandle) checkTakesOnly(m facts.Ref, isCopy func(of, m facts.Mount) bool) error {
	of, err := h.thread.entry(m)
	if err != nil {
		return err
	}
	on, err := h.thread.entry(facts.Ref{OldID: of.OldParent})
	if err != nil {
		return err
	}
	namespaces, err := ownedNamespaces(on.Ref())
	if err != nil {
		return err
	}
	defer closeAll(namespaces)
	all := tablesOf(namespaces)
	if _, found := mount.Find(all, on.OldID); !found {
		return refuse("%s is %v", on.Ref(), errNotMounted) // what receives its events is not known then
	}
	below := strings.TrimPrefix(of.Path, strings.TrimSuffix(on.Path, "/"))
	for _, e := range mount.UnmountedWith(all, on.Ref(), below) {
		if e.OldID != m.OldID && !isCopy(of, e) {
			return refuse("the umount would also take what is mounted on %q in a mount namespace", e.Path)
		}
	}
	return nil
}
