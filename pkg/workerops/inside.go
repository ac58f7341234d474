package workerops

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/worker"
)

// Containers have mounts of their own, in mount namespaces of their own: what is
// healed on the host stays dead there. Peek looks at such a mount, Inside replaces
// them. Nothing of a container is executed, no link of it is followed, and no
// path of it is believed: what a path leads to must be the mount that was meant.

// InContainersQuery names mounts in the mount namespaces of containers.
type InContainersQuery struct {
	Targets []InContainerTarget
	// Budget is for each mount namespace; several are worked on at a time.
	Budget time.Duration
}

// InContainerTarget is one mount in one mount namespace.
type InContainerTarget struct {
	// PID is a process in the namespace, whose inode number is Namespace.
	PID       int
	Namespace uint64
	// Path is as seen from the root of the namespace, Mount what is topmost there.
	Path  string
	Mount MountRef
	// Attr are the MOUNT_ATTR_* bits that it had.
	Attr uint64
	// Swap says what is to come instead.
	Swap Swap
}

// Swap says what a dead mount is replaced by.
type Swap struct {
	// Source is the path of the healthy mount on the host, SourceMount the mount
	// expected there, Sub the directory or file below its root.
	Source      string
	SourceMount MountRef
	Sub         string
	// Attr are the final MOUNT_ATTR_* bits; Guard are more, kept until ours stands
	// alone.
	Attr, Guard uint64
	// Before and After are the propagation types (MS_PRIVATE ...) that ours gets
	// before it is moved, and in the end; 0 leaves it as it is. Join makes it a
	// peer of the source in the end.
	Before, After uint64
	Join          bool
	// Ended is true for a filesystem that has ended although it answers, Stale for one
	// of NFS, which has to answer ESTALE.
	Ended, Stale bool
	// Stray is a mount that an interrupted replacement left on top of the dead one;
	// zero for none.
	Stray MountRef
	// Ours is a mount that an interrupted replacement left: beneath the dead one,
	// or alone if it is what is topmost. Zero for none.
	Ours MountRef
	// Covers is the dead mount, of this superblock, on top of which ours is to stand;
	// zero where ours takes its mount point.
	Covers     MountRef
	Superblock Number
}

// InContainersAnswer has an entry for each target.
type InContainersAnswer struct {
	Results []InContainerResult
}

// InContainerResult says what was seen, or done, at one target.
type InContainerResult struct {
	// Errno is what a touch of the mount, through the container's own path, gave
	// in the end.
	Errno syscall.Errno
	// Err says why a touch, or the replacement, was not done; Refused is true if
	// it must not be, Silent if there was no answer in time, Ended if the process
	// is gone.
	Err                    string
	Refused, Silent, Ended bool
	// Swapped is how long it took to put ours beneath and the dead one off.
	Swapped time.Duration
}

// insideAtOnce bounds the namespaces that are worked on at a time.
const insideAtOnce = 4

func inContainer(q InContainersQuery) (InContainersAnswer, error) {
	byNamespace := map[uint64][]int{}
	var order []uint64
	for i, t := range q.Targets {
		if byNamespace[t.Namespace] == nil {
			order = append(order, t.Namespace)
		}
		byNamespace[t.Namespace] = append(byNamespace[t.Namespace], i)
	}
	// This thread may have entered the host's mount namespace; the others are where
	// the process began.
	home, err := os.Open("/proc/thread-self/ns/mnt")
	if err != nil {
		return InContainersAnswer{}, err
	}
	defer home.Close()
	answer := InContainersAnswer{Results: make([]InContainerResult, len(q.Targets))}
	slots := make(chan struct{}, insideAtOnce)
	var mu sync.Mutex // a thread that is late must not write into what was sent
	closed := false
	var wg sync.WaitGroup
	for _, ns := range order {
		slots <- struct{}{}
		done := make(chan struct{})
		go func() {
			// A thread that was in a container goes nowhere else: it ends here.
			runtime.LockOSThread()
			defer close(done)
			in := q.namespace(home, byNamespace[ns])
			mu.Lock()
			defer mu.Unlock()
			for i, r := range in {
				if !closed {
					answer.Results[i] = r
				}
			}
		}()
		wg.Go(func() {
			defer func() { <-slots }()
			select {
			case <-done:
			case <-time.After(q.Budget):
				mu.Lock()
				defer mu.Unlock()
				for _, i := range byNamespace[ns] {
					answer.Results[i] = InContainerResult{Silent: true, Err: fmt.Sprintf("no answer within %s", q.Budget)}
				}
			}
		})
	}
	wg.Wait()
	mu.Lock()
	defer mu.Unlock()
	closed = true
	return answer, nil
}

// namespace works on the targets of one namespace, one after the other.
func (q InContainersQuery) namespace(home *os.File, targets []int) map[int]InContainerResult {
	results := make(map[int]InContainerResult, len(targets))
	var clones []brought
	defer func() {
		for _, c := range clones {
			c.close()
		}
	}()
	var room *room
	err := enter(home)
	if err == nil {
		room, err = openRoom(q.Targets[targets[0]])
	}
	if err == nil {
		defer room.close()
		// A clone can only be made from within the namespace of its source.
		for _, i := range targets {
			clones = append(clones, bring(q.Targets[i].Swap))
		}
		pause("inside/cloned")
		if err = room.enter(); err == nil {
			pause("inside/entered")
			err = q.carry(home, room, targets, clones)
			pause("inside/carried")
		}
	}
	for n, i := range targets {
		r := InContainerResult{}
		switch failed := err; {
		case failed != nil:
			r.fail(failed)
		default:
			if n > 0 {
				failed = room.alive()
			}
			if failed == nil {
				failed = clones[n].err
			}
			if failed == nil {
				failed = room.swap(q.Targets[i], clones[n], &r)
			}
			if failed == nil {
				swapped := r.Swapped
				r = room.touch(q.Targets[i])
				r.Swapped = swapped
			} else {
				r.fail(failed)
			}
		}
		results[i] = r
	}
	return results
}

// carry looks at the dead mounts once more, and copies what stands in them into
// their clones, before these are put anywhere: whoever is killed in between leaves
// both or none. It goes home for that, and comes back: who waits for a filesystem
// inside of a container keeps all of that container's mounts.
func (q InContainersQuery) carry(home *os.File, r *room, targets []int, clones []brought) error {
	for n, i := range targets {
		b, t := &clones[n], q.Targets[i]
		switch {
		case b.err != nil:
		case t.Swap.replaces():
			b.dead, b.nested, b.err = r.copyDead(t)
		case t.Swap.Stale:
			var fd int
			if b.dead, fd, b.err = r.cloneTop(t); b.err == nil {
				_ = unix.Close(fd)
			}
		}
	}
	if err := enter(home); err != nil {
		return err
	}
	for n, i := range targets {
		b := &clones[n]
		switch s := q.Targets[i].Swap; {
		case b.dead < 0 || s.Ended:
		case s.Stale:
			b.err = staleTwice(b.dead)
			if b.err == nil && b.clone >= 0 && answers(b.clone) != 0 {
				b.err = refuse("what was to come in its place does not answer")
			}
		case answers(b.dead) == 0:
			b.err = refuse("it answers again")
		}
		for _, one := range b.nested {
			if b.err == nil {
				b.err = one.attach(b.clone)
			}
		}
	}
	return r.enter()
}

// replaces is true when a dead mount is topmost and has to be replaced as a whole.
func (s Swap) replaces() bool { return s.Ours == (MountRef{}) && s.Stray == (MountRef{}) }

func (r *InContainerResult) fail(err error) {
	r.Err, r.Refused, r.Ended = err.Error(), errors.Is(err, worker.ErrRefused), errors.Is(err, errEnded)
}

// errEnded says that the container's process is gone, and most likely all of it.
var errEnded = errors.New("has ended")

func ended(pid int) error { return fmt.Errorf("%w: process %d %w", worker.ErrRefused, pid, errEnded) }

// brought is what a thread brings along into a namespace: the clone, and the
// mount that it is to be a peer of; -1 for none.
type brought struct {
	clone, source int
	// dead is a clone of the dead mount, to ask it.
	dead   int
	nested []nested
	err    error
}

func (b brought) close() {
	fds := []int{b.clone, b.source, b.dead}
	for _, n := range b.nested {
		fds = append(fds, n.fd)
	}
	for _, fd := range fds {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// bring makes the clone with all that makes it safe: whoever reaches it has no
// more rights than at the mount that it replaces.
func bring(s Swap) (b brought) {
	b = brought{clone: -1, source: -1, dead: -1}
	if s.Join {
		if b.source, b.err = openSource(s); b.err != nil {
			return b
		}
	}
	if s.Ours != (MountRef{}) {
		return b // it is there already
	}
	b.clone, b.err = cloneOf(AttachQuery{Source: s.Source, SourceMount: s.SourceMount, Sub: s.Sub})
	if b.err != nil {
		return b
	}
	attr := setattrOf(s.Attr | s.Guard)
	attr.Propagation = s.Before
	if err := unix.MountSetattr(b.clone, "", unix.AT_EMPTY_PATH, attr); err != nil {
		b.err = fmt.Errorf("mount_setattr on the clone: %w", err)
	}
	return b
}

func openSource(s Swap) (int, error) {
	src, err := openLeaf(s.Source)
	if err != nil {
		return -1, err
	}
	defer src.close()
	fd, ref, err := src.top()
	if err != nil {
		return -1, fmt.Errorf("open %q: %w", s.Source, err)
	}
	if !ref.Same(s.SourceMount) {
		_ = unix.Close(fd)
		return -1, refuse("%q was mounted anew since it was looked at", s.Source)
	}
	return fd, nil
}

// room is a container's mount namespace, and the thread that is in it.
type room struct {
	pid          int
	pidfd        int
	mounts       *os.File
	self         self
	tableAtEntry []insideEntry
}

// openRoom opens a process's namespaces, and sees that they are its own: its
// number may have been used again.
func openRoom(t InContainerTarget) (_ *room, err error) {
	r := &room{pid: t.PID, pidfd: -1}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	if r.pidfd, err = unix.PidfdOpen(t.PID, 0); err != nil {
		return nil, ended(t.PID)
	}
	if r.mounts, err = os.Open(fmt.Sprintf("/proc/%d/ns/mnt", t.PID)); err != nil {
		return nil, ended(t.PID)
	}
	if !isInode(int(r.mounts.Fd()), t.Namespace) {
		return nil, ended(t.PID) // it, or the one that had its number
	}
	host, err := hostOwner()
	if err != nil {
		return nil, err
	}
	if !host.owns(int(r.mounts.Fd())) {
		return nil, refuse("the container's mount namespace belongs to another user namespace")
	}
	if r.self.dir, err = os.Open("/proc/thread-self"); err != nil {
		return nil, err
	}
	return r, r.alive()
}

func (r *room) close() {
	if r.pidfd >= 0 {
		_ = unix.Close(r.pidfd)
	}
	for _, f := range []*os.File{r.mounts, r.self.dir} {
		if f != nil {
			_ = f.Close()
		}
	}
}

// alive fails once the process has ended.
func (r *room) alive() error {
	poll := []unix.PollFd{{Fd: int32(r.pidfd), Events: unix.POLLIN}}
	n, err := retryEINTR(func() (int, error) { return unix.Poll(poll, 0) })
	if err != nil || n != 0 {
		return ended(r.pid)
	}
	return nil
}

func (r *room) enter() error {
	if err := enter(r.mounts); err != nil {
		return err
	}
	return r.readTable()
}

// enter brings the calling thread into a mount namespace. It needs a thread whose
// root and working directory are its own (setns(2)).
func enter(namespace *os.File) error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare(CLONE_FS): %w", err)
	}
	if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("enter the mount namespace %s: %w", namespace.Name(), err)
	}
	return nil
}
