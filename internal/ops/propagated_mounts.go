package ops

import (
	"errors"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/mount"
	"github.com/csi-addons/node-healer/internal/worker"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// A mount that is put under a shared parent, as kubelet's directories are,
// appears in every mount namespace that shares them: those of CSI drivers and
// of agents that watch the node. mount_setattr does not propagate, so the
// copies would keep the attributes of the placeholder for ever. They are set one by one.

// propagatedMounts holds the copies of one mount, each by a descriptor: what is mounted
// on top of one later does not hide it. All work on them happens on one thread
// of its own, which enters the namespaces one after the other and may get stuck in one.
type propagatedMounts struct {
	jobs chan func()
	// budget bounds each job: the way to a copy may lead through a filesystem
	// that hangs, and the volume itself is not to wait for it.
	budget time.Duration
	stuck  bool
	list   []propagatedMount
	// missed counts the copies that could not be opened.
	missed int
}

type propagatedMount struct {
	namespace *os.File
	fd        int
}

// findPropagatedMounts finds and opens the copies of a mount.
func findPropagatedMounts(m, parentMount facts.Ref, budget time.Duration) *propagatedMounts {
	p := &propagatedMounts{jobs: make(chan func()), budget: budget}
	go func() {
		// The worker is spent afterwards, and this thread with it.
		runtime.LockOSThread()
		for job := range p.jobs {
			job()
		}
	}()
	p.do(func() {
		if err := p.find(m, parentMount); err != nil {
			p.missed++
		}
	})
	return p
}

// do runs a job on the thread, and abandons it when the budget is over.
func (p *propagatedMounts) do(job func()) {
	if p.stuck {
		return
	}
	done := make(chan struct{})
	p.jobs <- func() { job(); close(done) }
	select {
	case <-done:
	case <-time.After(p.budget):
		p.stuck = true
	}
}

// set sets the attributes of all copies. It returns the number of those that do not have
// them now; -1 means that it took too long.
func (p *propagatedMounts) set(attr facts.Attr) (left int) {
	p.do(func() {
		left = p.missed
		for _, c := range p.list {
			// mount_setattr(2) takes only mounts of the caller's namespace.
			err := mount.Enter(c.namespace)
			if err == nil {
				err = mount.SetAttr(c.fd, attr, 0)
			}
			if err != nil {
				left++
			}
		}
	})
	if p.stuck {
		return -1
	}
	return left
}

func (p *propagatedMounts) find(m, parentMount facts.Ref) error {
	namespaces, err := ownedNamespaces(m, parentMount)
	if err != nil {
		return err
	}
	wanted, found := mount.CopiesOf(tablesOf(namespaces), m, parentMount)
	if !found || wanted.None() {
		closeAll(namespaces)
		if !found {
			return refuse("%s is no longer in the mount table", m)
		}
		return nil
	}
	for _, ns := range namespaces {
		copies := wanted.Among(ns.table)
		if len(copies) == 0 {
			_ = ns.file.Close()
			continue
		}
		if err := mount.Enter(ns.file); err != nil {
			p.missed += len(copies)
			continue
		}
		for _, one := range copies {
			fd, err := openMount(one)
			switch {
			case errors.Is(err, worker.ErrRefused): // covered by another mount, which is not ours to move
			case err != nil:
				p.missed++
			default:
				p.list = append(p.list, propagatedMount{namespace: ns.file, fd: fd})
			}
		}
	}
	return nil
}

// openMount opens a mount of the mount table, if it is topmost at its path. It
// follows no link there.
func openMount(m facts.Mount) (int, error) {
	at, err := openTarget(m.Path)
	if err != nil {
		return -1, err
	}
	defer at.close()
	fd, err := mount.OpenTop(at.dir, at.name)
	if err != nil {
		return -1, err
	}
	var st unix.Statx_t
	err = unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_MNT_ID, &st)
	if err == nil && int(st.Mnt_id) != m.OldID {
		err = refuse("something else is mounted on it")
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}
