package touch

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/touch/mountinfo"
	"github.com/csi-addons/node-healer/pkg/worker"
)

// lost are the errnos with which a filesystem instance says that it has ended.
var lost = []syscall.Errno{unix.ENOTCONN, unix.ECONNABORTED, unix.ESTALE, unix.EIO}

// aside is a mount namespace that has a copy of the directory of a place and
// nothing else, and the thread that is in it.
type aside struct {
	jobs chan func()
	name string
	// tree is the copy of the directory, dead the copy of the dead mount once it is
	// exposed.
	tree, dead int
	self       self
	ground     MountRef
}

// newAside copies the directory of a place with all that is mounted in it.
func newAside(target leaf) (*aside, error) {
	tree, err := retryEINTR(func() (int, error) {
		return unix.OpenTree(target.dir, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE|unix.AT_EMPTY_PATH)
	})
	if err != nil {
		return nil, fmt.Errorf("clone the directory of the place: %w", err)
	}
	a := &aside{jobs: make(chan func()), name: target.name, tree: tree, dead: -1}
	go func() {
		// The thread goes nowhere else: it ends here.
		runtime.LockOSThread()
		for job := range a.jobs {
			job()
		}
	}()
	return a, nil
}

func (a *aside) do(job func() error) error {
	done := make(chan error)
	a.jobs <- func() { done <- job() }
	return <-done
}

func (a *aside) close() {
	close(a.jobs)
	for _, fd := range []int{a.tree, a.dead} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	if a.self.dir != nil {
		_ = a.self.dir.Close()
	}
}

// expose takes the copies of what covers the dead mount off, and sees that the
// dead one does not answer.
func (a *aside) expose(superblock Number) error {
	if err := a.enter(); err != nil {
		return err
	}
	at := "/" + a.name
	layers, err := a.layers(at)
	if err != nil {
		return err
	}
	for range len(layers) - 1 {
		if err := unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("umount of a copy: %w", err)
		}
	}
	if layers, err = a.layers(at); err != nil {
		return err
	}
	if len(layers) != 1 {
		return refuse("%d of the mounts at the place can be copied", len(layers))
	}
	if number, ok := parseNumber(layers[0].Dev); !ok || number != superblock {
		return refuse("the lowest mount at the place is of device %s", layers[0].Dev)
	}
	dir, err := openDir("/")
	if err != nil {
		return fmt.Errorf("open the copy: %w", err)
	}
	l := leaf{dir: dir, name: a.name, self: a.self} // stays open: an answer may be late
	fd, top, err := l.top()
	if err != nil {
		return fmt.Errorf("open the copy: %w", err)
	}
	a.dead = fd
	if a.ground, err = a.self.refOf(dir); err != nil {
		return err
	}
	if top.OldID != layers[0].ID {
		return refuse("the copy of the lowest mount cannot be reached")
	}
	pause("beneath/exposed")
	return l.endedForGood()
}

// endedForGood refuses for what answers, and for what may yet do so.
func (l leaf) endedForGood() error {
	asked := make(chan syscall.Errno, 1)
	go func() { asked <- l.answers() }()
	select {
	case errno := <-asked:
		switch {
		case errno == 0:
			return refuse("the lowest mount answers")
		case !slices.Contains(lost, errno):
			return fmt.Errorf("%w: the lowest mount is not known to have ended: %w", worker.ErrRefused, errno)
		}
		return nil
	case <-time.After(elsewhereTime):
		return refuse("the lowest mount gives no answer, so it may live")
	}
}

// enter brings the thread into the namespace. All but the copy of the directory is
// let go before anything is asked: a filesystem that never answers keeps the worker,
// and with it whatever is mounted there.
func (a *aside) enter() (err error) {
	if a.self.dir, err = os.Open("/proc/thread-self"); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the copies private: %w", err)
	}
	err = unix.MountSetattr(a.tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &unix.MountAttr{Propagation: unix.MS_PRIVATE})
	if err != nil {
		return fmt.Errorf("mount_setattr: %w", err)
	}
	if err := unix.MoveMount(a.tree, "", unix.AT_FDCWD, "/", unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("move_mount of the copy: %w", err)
	}
	if err := unix.Fchdir(a.tree); err != nil {
		return fmt.Errorf("fchdir: %w", err)
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("umount of the former root: %w", err)
	}
	return unix.Chdir("/")
}

func (a *aside) layers(at string) (found []mountinfo.Entry, err error) {
	err = a.self.table(func(e mountinfo.Entry) {
		if e.Path == at {
			found = append(found, e)
		}
	})
	return found, err
}

// join makes the copy of the ground a peer of the real one.
func (a *aside) join(ground int) error {
	to, err := openDir("/")
	if err != nil {
		return fmt.Errorf("open the copy: %w", err)
	}
	defer unix.Close(to)
	err = unix.MoveMount(ground, "", to, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH|unix.MOVE_MOUNT_SET_GROUP)
	if err != nil {
		return fmt.Errorf("share the events of what the mounts stand on: %w", err)
	}
	return nil
}

// unmount takes the copy of the dead mount off, by its descriptor: what came there
// in its place stays. One that is gone went with the real one.
func (a *aside) unmount() error {
	descriptors, err := a.self.open("fd")
	if err != nil {
		return err
	}
	defer descriptors.Close()
	if err := unix.Fchdir(int(descriptors.Fd())); err != nil {
		return fmt.Errorf("fchdir: %w", err)
	}
	defer func() { _ = unix.Chdir("/") }()
	if err := unix.Unmount(strconv.Itoa(a.dead), unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("umount: %w", err)
	}
	return nil
}
