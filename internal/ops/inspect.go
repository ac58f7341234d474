package ops

import (
	"cmp"
	"errors"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/mount"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// volDataLimit bounds kubelet's vol_data.json in bytes; a real one has a few
// hundred.
const volDataLimit = 64 << 10

// InspectQuery asks about paths and one superblock, in one round trip.
type InspectQuery struct {
	Paths []PathQuery
	// Probe is nil when no storage is to be probed.
	Probe *ProbeQuery
}

// PathQuery asks what is at a path.
type PathQuery struct {
	Path string
	// Mounted is true for a path on which something is mounted. Only VolData is read then: the
	// mount table says what is mounted, and a path walk to a mount makes it busy for an instant,
	// in which kubelet's umount fails.
	Mounted bool
	// VolData is the path of kubelet's vol_data.json for Path; empty for none.
	VolData string
	// Bare is true for a target on which nothing is mounted: whether anything lies there, on the
	// node's disk, is looked at.
	Bare bool
	// ParentOnly leaves out the last component, because a volume that does not answer is
	// mounted there.
	ParentOnly bool
}

// PathAnswer is what is at a path.
type PathAnswer struct {
	facts.PathFacts
	Kind    facts.PathKind
	VolData []byte
	// VolDataErrno is why VolData cannot be read although it is there; ENODATA for an empty
	// file.
	VolDataErrno syscall.Errno
}

// InspectAnswer has one answer for each path, in order.
type InspectAnswer struct {
	Paths []PathAnswer
	Probe ProbeAnswer
	// Elapsed is how long all of it took.
	Elapsed time.Duration
}

func inspect(all []InspectQuery) ([]InspectAnswer, error) {
	answers := make([]InspectAnswer, len(all))
	for i, q := range all {
		start, a := time.Now(), &answers[i]
		for _, p := range q.Paths {
			a.Paths = append(a.Paths, inspectPath(p))
		}
		pause("inspect")
		if q.Probe != nil {
			a.Probe = probe(*q.Probe)
			if err := ownShortage(a.Probe.Errno); err != nil {
				return nil, err
			}
		}
		a.Elapsed = time.Since(start)
	}
	return answers, nil
}

func inspectPath(q PathQuery) PathAnswer {
	var a PathAnswer
	if q.VolData != "" {
		a.readVolData(q.VolData)
	}
	if q.Mounted {
		return a
	}
	l, err := openTarget(q.Path)
	if err != nil {
		a.ParentErrno = errnoOf(err)
		return a
	}
	defer l.close()
	if q.ParentOnly {
		return a
	}
	// A driver may mount something there meanwhile, which a path walk would make busy for an
	// instant. In a clone of the directory's mount nothing is mounted.
	clone, err := privateClone(l.dir)
	if err != nil { // no right to it, or an unbindable mount
		a.inspectName(l.dir, l.name, false)
		return a
	}
	defer unix.Close(clone)
	a.inspectName(clone, l.name, q.Bare)
	return a
}

// privateClone opens a directory in a detached clone, to which no mount and no umount
// propagates.
func privateClone(dir int) (int, error) {
	clone, err := mount.Clone(dir)
	if err != nil {
		return -1, err
	}
	if err := mount.AddAttr(clone, 0, unix.MS_PRIVATE); err != nil {
		_ = unix.Close(clone)
		return -1, err
	}
	return clone, nil
}

// inspectName looks at the last component, and into it if it is bare.
func (a *PathAnswer) inspectName(dir int, name string, bare bool) {
	var st unix.Statx_t
	err := unix.Statx(dir, name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT|unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE|unix.STATX_SIZE, &st)
	if err != nil {
		a.Errno = errnoOf(err)
		return
	}
	a.Kind = kindOf(st)
	switch a.Kind {
	case facts.KindDirectory:
		if bare {
			empty, err := emptyDirectory(dir, name)
			a.NotEmpty = !empty && err == nil
		}
	case facts.KindFile:
		a.NotEmpty = bare && st.Size > 0
	case facts.KindBlock:
		a.Rdev = facts.Dev{Major: st.Rdev_major, Minor: st.Rdev_minor}
	case facts.KindSymlink:
		var err error
		a.Link, err = readlinkAt(dir, name)
		a.Errno = errnoOf(err)
	}
}

// kinds translates the type in stx_mode; any other is KindOther.
var kinds = map[uint16]facts.PathKind{
	unix.S_IFDIR: facts.KindDirectory, unix.S_IFREG: facts.KindFile, unix.S_IFBLK: facts.KindBlock, unix.S_IFLNK: facts.KindSymlink,
}

func kindOf(st unix.Statx_t) facts.PathKind {
	return cmp.Or(kinds[st.Mode&unix.S_IFMT], facts.KindOther)
}

// readVolData leaves VolData nil for a file that is missing or unreadable: it is evidence
// when it is there, and nothing follows from its absence.
func (a *PathAnswer) readVolData(p string) {
	l, err := openTarget(p)
	if err == nil {
		defer l.close()
		a.VolData, err = readRegular(l.dir, l.name, volDataLimit)
	}
	switch {
	case err == nil && len(a.VolData) == 0:
		a.VolDataErrno = unix.ENODATA
	case err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR):
		a.VolDataErrno = errnoOf(err)
	}
}

// ownShortage returns err if it says that this process has run out of descriptors or memory: nothing
// follows from that for a volume. A daemon that has run out of the same reports the same errno; this
// process can open a file then, and the result is nil.
func ownShortage(err error) error {
	if !slices.Contains([]syscall.Errno{unix.EMFILE, unix.ENFILE, unix.ENOMEM}, errnoOf(err)) {
		return nil
	}
	fd, ours := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
	if ours != nil {
		return err
	}
	_ = unix.Close(fd)
	return nil
}

// errnoOf returns the errno of an error; EIO for one that has none.
func errnoOf(err error) syscall.Errno {
	var e syscall.Errno
	if err != nil && !errors.As(err, &e) {
		return unix.EIO
	}
	return e
}
