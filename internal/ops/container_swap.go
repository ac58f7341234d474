package ops

import (
	"cmp"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/mount"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// swap is the replacement of one dead mount in a container: the placement of a clone of
// what the host has, with copies of what is mounted in the dead mount.
type swap struct {
	placement
	in    *containerNamespace
	query facts.ContainerSwap
	// source is the mount that ours is to be a peer of; -1 for none.
	source int
	// deadClone is a clone of the dead mount, to ask it; -1 for none.
	deadClone int
	nested    []nested
	// err is why it must not run.
	err error
}

// prepareSwap makes the clone, with at most the rights of the mount that it replaces. The
// thread is in the host's namespace.
func prepareSwap(in *containerNamespace, w facts.ContainerSwap) *swap {
	s := &swap{in: in, query: w, source: -1, deadClone: -1, placement: placement{
		operation: "replace-in-container", position: Beneath, clone: -1, ours: w.Ours, copied: true,
		dead:       Dead{Mount: w.Container.Mount.Ref(), Superblock: w.Covers.Dev, Ended: w.Ended, Stale: w.Stale},
		revalidate: func() error { return asSeen(w.Container.Mount) },
	}}
	if covers := w.Covers.Ref(); covers != (facts.Ref{}) {
		s.position, s.copied, s.dead.Mount = OnTop, false, covers
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

// propagationOf has the propagation types of a mount before it is moved, MS_PRIVATE if
// there is none, and in the end, if they change then. A peer of the source joins it.
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

// run replaces the dead mount. The thread is in the container's namespace.
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
	s.on = parentMount
	if w.Stray != (facts.Ref{}) {
		if err := at.unmountTop(w.Stray); err != nil {
			return err
		}
		if err := (Dead{}).check(at); err != nil { // it was covered until now
			return err
		}
	}
	switch {
	case w.Ours == (facts.Ref{}) && len(s.nested) > 0 && s.position == OnTop:
		err = refuse("something is mounted on %q in the container, which a mount on top would hide", s.nested[0].path)
	case w.Ours == (facts.Ref{}):
		err = s.placement.run()
	case s.position == OnTop:
		s.on = w.Covers.Ref()
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

// finalize takes the guard off last: while it is there, a later call knows that
// something is left to be done.
func (s *swap) finalize(at targetHandle) error {
	w := s.query
	p, err := openPlaced(at, s.ours, s.on)
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

// asSeen refuses when the mount's attributes were changed: ours has those that it had.
// Below Linux 6.8 nothing tells.
func asSeen(m facts.Mount) error {
	if m.ID == 0 {
		return nil
	}
	now, err := status(m.ID, mount.Basic)
	if err == nil && now.Attr&facts.AttrSettable != m.Attr&facts.AttrSettable {
		return refuse("its attributes have changed since it was inspected")
	}
	return err
}
