package ops

import (
	"errors"
	"fmt"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/mount"
	"github.com/csi-addons/node-healer/internal/operation"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// containerNamespace is the mount namespace of a container, and the calling thread, which enters
// it.
type containerNamespace struct {
	pid    int
	pidfd  int
	mounts *os.File
	thread thread
	// table is the namespace's mount table as it was when the thread entered.
	table []facts.Mount
}

// openContainer opens the mount namespace of a container's process, and checks by its inode that
// it is the one that was meant: the process may have ended, and its number be another one's.
func openContainer(t facts.ContainerMount) (_ *containerNamespace, err error) {
	c := &containerNamespace{pid: t.PID, pidfd: -1}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	if c.pidfd, err = unix.PidfdOpen(t.PID, 0); err != nil {
		return nil, ended(t.PID)
	}
	proc, host, err := openProcfs()
	if err != nil {
		return nil, err
	}
	defer proc.close()
	fd, err := proc.openNamespaceOf(t.PID)
	if err != nil && gone(err) {
		return nil, ended(t.PID)
	}
	if err != nil {
		return nil, fmt.Errorf("the mount namespace of process %d: %w", t.PID, err)
	}
	c.mounts = os.NewFile(uintptr(fd), "mnt")
	if !mount.IsInode(int(c.mounts.Fd()), t.Namespace) {
		return nil, ended(t.PID) // the container's process; another one has its number
	}
	owned, err := host.Owns(int(c.mounts.Fd()))
	if err != nil {
		return nil, err
	}
	if !owned {
		return nil, refuse("the container's mount namespace belongs to another user namespace")
	}
	if c.thread.dir, err = os.Open("/proc/thread-self"); err != nil {
		return nil, err
	}
	return c, c.alive()
}

func (c *containerNamespace) close() {
	closeFD(&c.pidfd)
	_ = c.mounts.Close() // nothing if it is nil
	_ = c.thread.dir.Close()
}

// alive fails once the container's process has ended: kubelet may unmount its volumes then.
func (c *containerNamespace) alive() error {
	poll := []unix.PollFd{{Fd: int32(c.pidfd), Events: unix.POLLIN}}
	n, err := mount.RetryEINTR(func() (int, error) { return unix.Poll(poll, 0) })
	if err != nil || n != 0 {
		return ended(c.pid)
	}
	return nil
}

// enter brings the calling thread into the namespace, and reads its mount table.
func (c *containerNamespace) enter() error {
	if err := operation.EnterMounts(c.mounts); err != nil {
		return err
	}
	c.table = nil
	return c.thread.visit(func(m facts.Mount) { c.table = append(c.table, m) })
}

// reach resolves the path to a container's mount but for its last component. The directories
// above lie on other filesystems: where one of those may hang, or be dead itself, only what the
// kernel has cached is walked (RESOLVE_CACHED). A thread that waits there would keep all mounts
// of the container for as long.
func (c *containerNamespace) reach(t facts.ContainerMount) (targetHandle, error) {
	at, known := mount.Find(c.table, t.Mount.OldID)
	if !known {
		return targetHandle{}, refuse("%s is no longer in the container", t.Mount.Ref())
	}
	through := ""
	for known {
		var above facts.Mount
		if above, known = mount.Find(c.table, at.OldParent); !known || above.OldID == at.OldID {
			break
		}
		if above.Path != at.Path && facts.IsType(above.FSType, facts.MayHang) {
			through = above.FSType
		}
		at = above
	}
	if through == "" {
		target, err := openTarget(t.Mount.Path)
		target.thread = c.thread
		return target, err
	}
	dir, name := path.Split(t.Mount.Path)
	fd, err := mount.OpenOverNoLink(unix.AT_FDCWD, path.Clean(dir), unix.O_PATH|unix.O_DIRECTORY, mount.ResolveCached)
	if err != nil {
		return targetHandle{}, fmt.Errorf("%w: the way to it leads through a %s, which may not answer: %w", operation.ErrRefused, through, err)
	}
	return targetHandle{dir: fd, name: name, thread: c.thread}, nil
}

// cloneTop clones the container's mount, which has to be topmost at its path, and returns a
// descriptor of the mount itself, too.
func (c *containerNamespace) cloneTop(t facts.ContainerMount) (clone, fd int, err error) {
	target, err := c.reach(t)
	if err != nil {
		return -1, -1, err
	}
	defer target.close()
	if fd, err = target.open(t.Mount.Ref()); err == nil {
		clone, err = mount.Clone(fd)
	}
	if err != nil {
		closeFD(&fd)
		return -1, -1, fmt.Errorf("clone what is mounted there: %w", err)
	}
	return clone, fd, nil
}

// errEnded says that the container's process has ended, and most likely the container with it.
var errEnded = errors.New("has ended")

func ended(pid int) error {
	return fmt.Errorf("%w: process %d %w", operation.ErrRefused, pid, errEnded)
}
