package ops

import (
	"errors"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/mount"
	"github.com/csi-addons/node-healer/internal/operation"
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
func write(q WriteQuery) (w facts.Write, _ error) {
	start := time.Now()
	defer func() { w.Asked, w.Elapsed = true, time.Since(start) }()
	clone := -1 // made by descriptor: of no other mount that is put on the path meanwhile
	from, err := thread{}.openMount(q.Path, q.Want)
	if err == nil {
		clone, err = mount.Clone(from)
		_ = unix.Close(from)
	}
	switch {
	case errors.Is(err, operation.ErrRefused), errors.Is(err, unix.EINVAL): // detached, or another one came, since it was found
		return facts.Write{Answer: answer(opResolve, nil), Unable: true}, nil
	case err != nil:
		return facts.Write{Answer: answer(opResolve, err)}, ownShortage(err)
	}
	defer unix.Close(clone)
	pause("write")
	if q.Sync {
		return syncRoot(clone), nil
	}
	fd, err := mount.RetryEINTR(func() (int, error) {
		return unix.Openat(clone, ".", unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC|unix.O_EXCL, 0o600)
	})
	if err != nil {
		a := answer("create", err)
		return facts.Write{Answer: a, Unable: slices.Contains(unable, a.Errno) || slices.Contains(full, a.Errno)}, ownShortage(err)
	}
	defer unix.Close(fd)
	if _, err := mount.RetryEINTR(func() (int, error) { return unix.Write(fd, writeBlock) }); err != nil {
		return facts.Write{Answer: answer("write", err), Unable: slices.Contains(full, errnoOf(err))}, nil
	}
	// Here no space is a fault: data was accepted and then lost.
	if _, err := mount.RetryEINTR(func() (int, error) { return 0, unix.Fdatasync(fd) }); err != nil {
		return facts.Write{Answer: answer("fdatasync", err)}, nil
	}
	return facts.Write{}, nil
}

// syncRoot calls fsync(2) on the root directory.
func syncRoot(clone int) facts.Write {
	fd, err := mount.Open(clone, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOATIME)
	if err != nil {
		return facts.Write{Answer: answer("open", err), Unable: true}
	}
	defer unix.Close(fd)
	_, err = mount.RetryEINTR(func() (int, error) { return 0, unix.Fsync(fd) })
	return facts.Write{Answer: answer(facts.OpSync, err)}
}
