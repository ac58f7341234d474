package ops

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/mount"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// swap is the replacement of one dead mount in a container: the placement of a clone of the
// host's healthy mount, with copies of the mounts inside the dead mount.
type swap struct {
	placement
	in    *containerNamespace
	query facts.ContainerSwap
	// source is a descriptor of the host's mount of which ours is to be a peer; -1 for none.
	source int
	// deadClone is a clone of the dead mount, by which the dead filesystem is asked from the
	// host's namespace; -1 for none.
	deadClone int
	nested    []nested
	// err is why the swap must not run, errno the answer of what is at the mount point in the end.
	err   error
	errno syscall.Errno
}

// prepareSwap makes the clone, with at most the rights of the mount that it replaces, and with
// AttrGuard: a later call sees by that which mount an interrupted swap left. The thread is in
// the host's namespace.
func prepareSwap(in *containerNamespace, w facts.ContainerSwap) *swap {
	s := &swap{in: in, query: w, source: -1, deadClone: -1, placement: placement{
		operation: "replace-in-container", position: facts.BeneathDead, clone: -1, ours: w.Ours,
		dead: Dead{w.Container.Mount, w.Ended, w.Stale},
	}}
	if w.Covers.Ref() != (facts.Ref{}) {
		s.position, s.dead.Mount = facts.OnDead, w.Covers
	}
	if w.Sharing == facts.SharingPeer {
		if s.source, s.err = openSource(w.Source); s.err != nil {
			return s
		}
	}
	if w.Ours == (facts.Ref{}) {
		s.clone, s.ours, s.err = cloneSource(w.Source, w.Sub, func(fd int) error {
			propagation := uint64(unix.MS_PRIVATE) // a peer joins the group of its source (finalize)
			if w.Sharing == facts.SharingSlave {
				propagation = unix.MS_SLAVE
			}
			return mount.SetAttr(fd, w.Attr|facts.AttrGuard, propagation)
		})
	}
	return s
}

func (s *swap) close() {
	fds := []int{s.clone, s.source, s.deadClone}
	for _, n := range s.nested {
		fds = append(fds, n.fd)
	}
	for _, fd := range fds {
		closeFD(&fd)
	}
}

// run replaces the dead mount, or finishes what an interrupted swap left. The thread is in the
// container's namespace.
func (s *swap) run() error {
	w := s.query
	var err error
	if s.target, err = s.in.reach(w.Container); err != nil {
		return err
	}
	defer s.target.close()
	if s.parent, err = s.target.parent(); err != nil {
		return err
	}
	if below, known := mount.Find(s.in.table, s.parent.OldID); !known || below.Propagation.Shared != 0 {
		return refuse("its parent mount shares its events with others")
	}
	switch {
	case w.Ours == (facts.Ref{}):
		err = s.placement.run()
	case s.position == facts.OnDead:
		s.parent = w.Covers.Ref()
		err = s.verify()
	case w.Ours.Same(w.Container.Mount.Ref()):
		err = s.verify()
	default:
		err = s.detachDead()
	}
	if err == nil {
		err = s.finalize()
	}
	if err == nil {
		s.errno = s.target.answers()
	}
	return err
}

// finalize gives ours its propagation and its final attributes. AttrGuard goes last: while ours
// has it, a later call knows that an interrupted swap is left to be finished.
func (s *swap) finalize() (err error) {
	closeFD(&s.clone) // there is none of what an earlier swap left
	if s.clone, err = s.target.open(s.ours); err != nil {
		return err
	}
	if err := s.in.alive(); err != nil {
		return err
	}
	if s.source >= 0 {
		now, err := s.target.thread.entry(s.ours)
		if err == nil && now.Propagation.Shared == 0 {
			err = mount.JoinGroup(s.source, s.clone)
		}
		if err != nil {
			return fmt.Errorf("share its events with the host's mount again: %w", err)
		}
		pause("replace-in-container/joined")
	}
	if err := s.set(s.query.Attr, 0); err != nil {
		return err
	}
	pause("replace-in-container/finalized")
	return nil
}

// checkAttributes refuses when somebody changed the attributes of the dead mount since it was
// inspected: ours has the former ones, and one that was made read-only must stay so. Below Linux
// 6.8 nothing tells.
func (d Dead) checkAttributes() error {
	if d.ID == 0 {
		return nil
	}
	now, err := mount.Stat(mount.Own, d.ID, mount.Basic)
	if err == nil && now.Attr&facts.AttrSettable != d.Attr&facts.AttrSettable {
		return refuse("its attributes have changed since it was inspected")
	}
	return err
}
