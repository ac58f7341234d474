package ops

import (
	"errors"
	"os"
	"slices"
	"time"

	"github.com/csi-addons/node-healer/internal/mount"
	"github.com/csi-addons/node-healer/internal/operation"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// A mount that is put on a shared parent mount, as that of kubelet's directories is, appears as
// a copy in every mount namespace that shares the parent: those of CSI drivers and of agents
// that watch the node. mount_setattr(2) does not propagate, so the copies of a placeholder
// would stay read-only for ever. Their attributes are set one by one.

// propagatedMounts holds the copies of one mount, each by a descriptor: what is mounted on top
// of a copy later does not hide it. Its jobs enter the mount namespaces of the copies one after the
// other, each job on a thread of its own: one may never come back.
type propagatedMounts struct {
	home *os.File
	// budget bounds each job: the way to a copy may lead through a filesystem that hangs,
	// and the mount on the host must not stay read-only because of that.
	budget time.Duration
	// stuck is true once a job failed, or took longer than the budget: no further one is begun.
	stuck bool
	list  []propagatedMount
	// missed counts the copies that could not be opened.
	missed int
}

type propagatedMount struct {
	namespace *os.File
	fd        int
}

func findPropagatedMounts(m, parentMount facts.Ref, budget time.Duration) *propagatedMounts {
	home, err := os.Open("/proc/thread-self/ns/mnt")
	p := &propagatedMounts{home: home, budget: budget, stuck: err != nil}
	p.do(func() error { return p.find(m, parentMount) })
	return p
}

// do runs a job, and abandons it when the budget is over.
func (p *propagatedMounts) do(job func() error) {
	if p.stuck {
		return
	}
	ended, err := onThread(p.home, p.budget, job)
	p.stuck = !ended || err != nil
}

// set sets the attributes of all copies. It returns the number of those that do not have
// them now; -1 means that it is not known.
func (p *propagatedMounts) set(attr facts.Attr) (left int) {
	p.do(func() error {
		left = p.missed
		for _, c := range p.list {
			// mount_setattr(2) takes only mounts of the caller's namespace.
			err := operation.EnterMounts(c.namespace)
			if err == nil {
				err = mount.SetAttr(c.fd, attr, 0)
			}
			if err != nil {
				left++
			}
		}
		return nil
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
	copies, found := mount.CopiesOf(tablesOf(namespaces), m, parentMount)
	if !found {
		closeAll(namespaces)
		return refuse("%s is no longer in the mount table", m)
	}
	// The thread's own /proc, before it meets others.
	dir, err := os.Open("/proc/thread-self")
	if err != nil {
		return err
	}
	defer dir.Close()
	for _, ns := range namespaces {
		here := slices.DeleteFunc(ns.table, func(m facts.Mount) bool {
			return !slices.ContainsFunc(copies, func(c facts.Mount) bool { return c.OldID == m.OldID })
		})
		if len(here) == 0 {
			_ = ns.file.Close()
			continue
		}
		if err := operation.EnterMounts(ns.file); err != nil {
			p.missed += len(here)
			continue
		}
		for _, one := range here {
			fd, err := thread{dir}.openMount(one.Path, one.Ref())
			switch {
			case errors.Is(err, operation.ErrRefused): // another mount covers the copy: no process reaches it
			case err != nil:
				p.missed++
			default:
				p.list = append(p.list, propagatedMount{namespace: ns.file, fd: fd})
			}
		}
	}
	return nil
}
