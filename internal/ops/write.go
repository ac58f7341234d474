package ops

import (
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// WriteQuery asks whether the filesystem mounted at a path takes a write.
type WriteQuery struct {
	Path string
	// Want is the expected mount; on another one nothing is written.
	Want facts.Ref
	// Sync asks for no more than fsync(2) of the root directory. Nothing is written
	// unless that was about to be: 223 ns and no sector on a clean ext4 (Linux 6.18).
	Sync bool
}

// WriteAnswer is the result of the write. An errno is an answer.
type WriteAnswer struct {
	// Op and Errno name the operation that failed.
	Op    string
	Errno syscall.Errno
	// Unable is true where nothing can be written without leaving a name, or
	// not by this process: nothing follows from that.
	Unable  bool
	Elapsed time.Duration
}

// unable are the errnos of a filesystem without O_TMPFILE, of a root that is no
// directory, and of a process that may not create files here.
var unable = []syscall.Errno{
	unix.EOPNOTSUPP, unix.ENOSYS, unix.EISDIR, unix.ENOENT, unix.ENOTDIR, unix.EINVAL, unix.EOVERFLOW, unix.EACCES, unix.EPERM,
}

// full are the errnos of a filesystem or quota without space, which is no fault.
var full = []syscall.Errno{unix.ENOSPC, unix.EDQUOT}

// writeBlock is what is written: enough for a block to be allocated.
var writeBlock = make([]byte, 4096)

// write creates a file without a name in the root directory (O_TMPFILE), writes
// a block, has it on the disk and closes it, which frees it again.
func write(q WriteQuery) (a WriteAnswer, _ error) {
	start := time.Now()
	defer func() { a.Elapsed = time.Since(start) }()
	before, there, err := isMounted(q.Path, q.Want)
	if err != nil {
		return WriteAnswer{Op: "resolve", Errno: errnoOf(err)}, ownShortage(err)
	}
	if !there {
		return WriteAnswer{Unable: true, Op: opFind}, nil
	}
	clone, op, err := cloneAt(q.Path)
	if err != nil {
		return WriteAnswer{Op: op, Errno: errnoOf(err)}, ownShortage(err)
	}
	defer unix.Close(clone)
	pause("write")
	// Before and after, and by the number of what was cloned in between: a mount
	// that came and went has another one.
	after, there, err := isMounted(q.Path, q.Want)
	if err != nil || !there || before != after || deviceNumber(clone) != after {
		return WriteAnswer{Unable: true, Op: opFind}, ownShortage(err)
	}
	if q.Sync {
		return syncRoot(clone), nil
	}
	fd, err := retryEINTR(func() (int, error) {
		return unix.Openat(clone, ".", unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC|unix.O_EXCL, 0o600)
	})
	if err != nil {
		errno := errnoOf(err)
		if trouble := ownShortage(err); trouble != nil {
			return WriteAnswer{}, trouble
		}
		if slices.Contains(unable, errno) || slices.Contains(full, errno) {
			return WriteAnswer{Unable: true, Errno: errno, Op: "create"}, nil
		}
		return WriteAnswer{Op: "create", Errno: errno}, nil
	}
	defer unix.Close(fd)
	for _, step := range []struct {
		op  string
		run func() (int, error)
	}{
		{"write", func() (int, error) { return unix.Write(fd, writeBlock) }},
		{"fdatasync", func() (int, error) { return 0, unix.Fdatasync(fd) }},
	} {
		if _, err := retryEINTR(step.run); err != nil {
			// No space is no fault, except for data that was accepted and then lost.
			noSpace := step.op == "write" && slices.Contains(full, errnoOf(err))
			return WriteAnswer{Op: step.op, Errno: errnoOf(err), Unable: noSpace}, nil
		}
	}
	return WriteAnswer{}, nil
}

// syncRoot calls fsync(2) on the root directory.
func syncRoot(clone int) WriteAnswer {
	fd, err := retryEINTR(func() (int, error) {
		return unix.Openat(clone, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOATIME, 0)
	})
	if err != nil {
		return WriteAnswer{Unable: true, Op: "open", Errno: errnoOf(err)}
	}
	defer unix.Close(fd)
	_, err = retryEINTR(func() (int, error) { return 0, unix.Fsync(fd) })
	return WriteAnswer{Op: facts.OpSync, Errno: errnoOf(err)}
}

const opFind = "find the mount"

// isMounted reports whether the mount that a path ends on is the expected one. It
// returns the device number of its root.
func isMounted(p string, want facts.Ref) (dev uint64, there bool, err error) {
	l, err := openTarget(p)
	if err != nil {
		return 0, false, err
	}
	defer l.close()
	fd, now, err := l.top()
	if err != nil {
		return 0, false, err
	}
	defer unix.Close(fd)
	return deviceNumber(fd), now.Same(want), nil
}

// deviceNumber is 0 when the filesystem does not answer, as an xfs that shut
// itself down.
func deviceNumber(fd int) uint64 {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return 0
	}
	return st.Dev
}
