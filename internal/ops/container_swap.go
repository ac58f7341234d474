package ops

import (
	"cmp"
	"fmt"

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
	// err is why the swap must not run.
	err error
}

// prepareSwap makes the clone, with at most the rights of the mount that it replaces, and with
// AttrGuard: a later call sees by that which mount an interrupted swap left. The thread is in
// the host's namespace.
func prepareSwap(in *containerNamespace, w facts.ContainerSwap) *swap {
	s := &swap{in: in, query: w, source: -1, deadClone: -1, placement: placement{
		operation: "replace-in-container", position: facts.BeneathDead, clone: -1, ours: w.Ours, copied: true,
		dead:       Dead{w.Container.Mount, w.Ended, w.Stale},
		revalidate: func() error { return attributesUnchanged(w.Container.Mount) },
	}}
	if w.Covers.Ref() != (facts.Ref{}) {
		s.position, s.copied, s.dead.Mount = facts.OnDead, false, w.Covers
	}
	if w.Sharing == facts.SharingPeer {
		if s.source, s.err = openSource(w.Source); s.err != nil {
			return s
		}
	}
	if w.Ours == (facts.Ref{}) {
		s.clone, s.ours, s.err = cloneSource(w.Source, w.Sub, func(fd int) error {
			return mount.SetAttr(fd, w.Attr|facts.AttrGuard, cmp.Or(propagationOf[w.Sharing].before, unix.MS_PRIVATE))
		})
	}
	return s
}

// propagationOf has the propagation types of ours: before it is moved (MS_PRIVATE if none is
// given), and in the end, if another one is given. A peer joins the group of its source (join).
var propagationOf = map[facts.Sharing]struct{ before, after uint64 }{
	facts.SharingSlave:      {before: unix.MS_SLAVE},
	facts.SharingOwn:        {after: unix.MS_SHARED},
	facts.SharingSlaveOwn:   {before: unix.MS_SLAVE, after: unix.MS_SHARED},
	facts.SharingUnbindable: {after: unix.MS_UNBINDABLE},
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
	at, err := s.in.reach(w.Container)
	if err != nil {
		return err
	}
	defer at.close()
	s.target = at
	parentMount, err := at.parent()
	if err != nil {
		return err
	}
	if below, known := s.in.entry(parentMount.OldID); !known || below.Propagation.Shared != 0 {
		return refuse("its parent mount shares its events with others")
	}
	s.parent = parentMount
	if w.Stray != (facts.Ref{}) {
		if err := at.umount(w.Stray); err != nil {
			return err
		}
		if err := (Dead{}).check(at); err != nil { // no probe could reach the dead mount beneath it
			return err
		}
	}
	switch {
	case w.Ours == (facts.Ref{}) && len(s.nested) > 0 && s.position == facts.OnDead:
		err = refuse("something is mounted on %q in the container, which a mount on top would hide", s.nested[0].path)
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
	if err != nil {
		return err
	}
	return s.finalize(at)
}

// finalize gives ours its propagation and its final attributes. AttrGuard goes last: while ours
// has it, a later call knows that an interrupted swap is left to be finished.
func (s *swap) finalize(at targetHandle) error {
	w := s.query
	p, err := openPlaced(at, s.ours, s.parent)
	if err != nil {
		return err
	}
	defer unix.Close(p.fd)
	if err := s.in.alive(); err != nil {
		return err
	}
	if s.source >= 0 {
		if err := s.join(p); err != nil {
			return err
		}
	}
	if err := p.set(w.Attr, propagationOf[w.Sharing].after); err != nil {
		return err
	}
	pause("replace-in-container/finalized")
	return nil
}

// join makes ours a peer of the host's mount, if it is not yet.
func (s *swap) join(p placed) error {
	now, err := p.target.thread.entry(s.ours)
	if err != nil || now.Propagation.Shared != 0 {
		return err
	}
	if err := mount.JoinGroup(s.source, p.fd); err != nil {
		return fmt.Errorf("share its events with the host's mount again: %w", err)
	}
	pause("replace-in-container/joined")
	return nil
}

// attributesUnchanged refuses when somebody changed the attributes of the dead mount since it was
// inspected: ours has the former ones, and one that was made read-only must stay so. Below Linux
// 6.8 nothing tells.
func attributesUnchanged(m facts.Mount) error {
	if m.ID == 0 {
		return nil
	}
	now, err := status(m.ID, mount.Basic)
	if err == nil && now.Attr&facts.AttrSettable != m.Attr&facts.AttrSettable {
		return refuse("its attributes have changed since it was inspected")
	}
	return err
}
