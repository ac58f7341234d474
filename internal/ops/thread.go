package ops

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/mount"
	"github.com/csi-addons/node-healer/internal/operation"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// thread is the calling thread, by its directory in procfs. A thread that entered a container's
// mount namespace meets the container's own /proc there, which may be anything: dir is the
// directory that it opened before. The zero value is a thread in the host's namespace.
type thread struct{ dir *os.File }

func (t thread) open(name string) (*os.File, error) {
	if t.dir == nil {
		return os.Open("/proc/thread-self/" + name)
	}
	fd, err := mount.Open(int(t.dir.Fd()), name, unix.O_RDONLY)
	if err != nil {
		return nil, fmt.Errorf("open %s of the thread: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// refOf identifies the mount that a descriptor is on. The old id comes from fdinfo, which asks
// no filesystem. The unique id comes from a statx, which a dead filesystem may refuse (xfs that
// shut itself down: EIO), and is 0 then.
func (t thread) refOf(fd int) (facts.Ref, error) {
	var ref facts.Ref
	f, err := t.open("fdinfo/" + strconv.Itoa(fd))
	if err != nil {
		return ref, err
	}
	defer f.Close()
	raw, err := io.ReadAll(f)
	if err != nil {
		return ref, fmt.Errorf("fdinfo: %w", err)
	}
	if ref.OldID, err = strconv.Atoi(field(raw, "mnt_id")); err != nil || ref.OldID == 0 {
		return ref, errors.New("fdinfo shows no mnt_id")
	}
	ref.ID = uniqueID(fd, "", unix.AT_EMPTY_PATH)
	return ref, nil
}

// uniqueID returns the unique id of the mount a path ends on, 0 when the kernel
// or the filesystem does not tell.
func uniqueID(dir int, name string, flags int) uint64 {
	var st unix.Statx_t
	flags |= unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
	if unix.Statx(dir, name, flags, unix.STATX_MNT_ID_UNIQUE, &st) != nil || st.Mask&unix.STATX_MNT_ID_UNIQUE == 0 {
		return 0
	}
	return st.Mnt_id
}

// onThread runs a job on a thread of its own in the host's mount namespace, from which the job may
// enter others, and waits until the budget is over: ended is false then, and the job may go on until
// the worker has ended. All threads of a worker but the one that runs operations are in the mount
// namespace of the server's container.
func onThread(home *os.File, budget time.Duration, job func() error) (ended bool, err error) {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // without an unlock: the runtime ends the thread with this goroutine
		err := operation.EnterMounts(home)
		if err == nil {
			err = job()
		}
		done <- err
	}()
	select {
	case err := <-done:
		return true, err
	case <-time.After(budget):
		return false, nil
	}
}

// errNotMounted says that a mount is no longer in the mount table.
var errNotMounted = errors.New("no longer in the mount table")

// visit reads the thread's mount table.
func (t thread) visit(visit func(facts.Mount)) error {
	f, err := t.open("mountinfo")
	if err != nil {
		return err
	}
	defer f.Close()
	return mount.Visit(f, func(m facts.Mount) error { visit(m); return nil })
}

// entry returns a mount's entry in the mount table; the zero value if it has none.
func (t thread) entry(r facts.Ref) (found facts.Mount, _ error) {
	err := t.visit(func(m facts.Mount) {
		if m.OldID == r.OldID {
			found = m
		}
	})
	return found, err
}

// parentOf returns the mount that r is mounted on; its error wraps errNotMounted when r is gone.
// The kernel gives an old id to the next mount at once, so statmount(2) is asked by the unique id
// where there is one.
func (t thread) parentOf(r facts.Ref) (facts.Ref, error) {
	var err error
	if r.ID != 0 {
		status, statErr := mount.Stat(mount.Own, r.ID, mount.Basic)
		if statErr == nil {
			return facts.Ref{ID: status.ParentID, OldID: status.OldParent}, nil
		}
		err = statErr
	}
	if !errors.Is(err, unix.ENOENT) {
		var m facts.Mount
		m, err = t.entry(r)
		if err != nil || m.OldParent != 0 {
			return facts.Ref{OldID: m.OldParent}, err
		}
	}
	return facts.Ref{}, fmt.Errorf("%w: %s is %w", operation.ErrRefused, r, errNotMounted)
}
