package touch

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/touch/mountinfo"
)

// A mount that another one covers has no name, and umount(2) knows names only. It
// goes by propagation: when a mount is unmounted, so is what stands at the same
// directory of the peers of its parent, and what stands on that slips down and
// stays as it is (measured on Linux 6.18). So a copy of the directory of the place
// becomes all that a mount namespace of the worker's own has. There the copies of
// what covers the dead mount are taken off, which nobody sees, the copy of the
// ground joins the peers of the real one, and the copy of the dead mount is
// unmounted. The namespace goes with the worker, whenever it is killed.

// TakeBeneathQuery names a dead mount at the bottom of a stack.
type TakeBeneathQuery struct {
	Target string
	// Top is the topmost mount, which stays as it is.
	Top MountRef
	// Dead is the lowest one, Superblock its filesystem, which must not answer.
	Dead       MountRef
	Superblock Number
}

// TakeBeneathAnswer says what an error could not: that it is done.
type TakeBeneathAnswer struct{ Done bool }

// maxLayers bounds the mounts that stand on one path.
const maxLayers = 64

func takeBeneath(q TakeBeneathQuery) (TakeBeneathAnswer, error) {
	var none TakeBeneathAnswer
	target, err := openLeaf(q.Target)
	if err != nil {
		return none, err
	}
	defer target.close()
	b, err := lookBeneath(q, target)
	if err != nil {
		return none, err
	}
	ground, err := openShared(b.ground)
	if err != nil {
		return none, err
	}
	defer unix.Close(ground)
	pause("beneath/checked")
	aside, err := newAside(target)
	if err != nil {
		return none, err
	}
	defer aside.close()
	if err := aside.do(func() error { return aside.expose(q.Superblock) }); err != nil {
		return none, err
	}
	if err := aside.do(func() error { return aside.join(ground) }); err != nil {
		return none, err
	}
	pause("beneath/joined")
	// From here on what happens to the dead mount happens to its copy too, so it is
	// looked at once more.
	if b, err = lookBeneath(q, target); err != nil {
		return none, err
	}
	if err := b.onlyDead(q.Superblock, aside.ground); err != nil {
		return none, err
	}
	if err := aside.do(aside.unmount); err != nil {
		return none, err
	}
	pause("beneath/done")
	return TakeBeneathAnswer{Done: true}, b.freed()
}

// stacked is a stack with a dead mount at the bottom.
type stacked struct {
	leaf leaf
	// above stands on dead, and may be the top itself.
	top, above, dead, ground MountRef
}

// lookBeneath sees that the stack is what the query says.
func lookBeneath(q TakeBeneathQuery, target leaf) (s stacked, err error) {
	fd, top, err := target.top()
	if err != nil {
		return s, fmt.Errorf("open the place: %w", err)
	}
	_ = unix.Close(fd)
	switch {
	case !top.Same(q.Top):
		return s, refuse("%s is topmost at the place now", top)
	case top.ID == 0:
		return s, refuse("this kernel gives mounts no unique ids (Linux 6.8)")
	}
	s = stacked{leaf: target, top: top, dead: top}
	if s.ground, err = refOf(target.dir); err != nil {
		return s, err
	}
	for range maxLayers {
		below, err := parentOf(s.dead)
		if err != nil {
			return s, err
		}
		if below.Same(s.ground) {
			break
		}
		s.above, s.dead = s.dead, below
	}
	if s.above == (MountRef{}) || !s.dead.Same(q.Dead) {
		return s, refuse("%s is lowest at the place now", s.dead)
	}
	on, err := self{}.standOn(s.dead)
	if err != nil {
		return s, err
	}
	for _, e := range on {
		if e.ID != s.above.OldID {
			return s, refuse("something else is mounted on %q in the dead mount", e.Path)
		}
	}
	return s, nil
}

// freed checks that the dead mount is gone, and what it carried stands on the
// ground.
func (s stacked) freed() error {
	below, err := parentOf(s.above)
	if err != nil {
		return fmt.Errorf("what covered the dead mount: %w", err)
	}
	fd, top, err := s.leaf.top()
	if err != nil {
		return fmt.Errorf("open the place: %w", err)
	}
	_ = unix.Close(fd)
	switch {
	case !below.Same(s.ground) || !(self{}).gone(s.dead):
		return fmt.Errorf("the dead mount is still there: %w", unix.EBUSY)
	case !top.Same(s.top):
		return refuse("%s is topmost at the place now", top)
	}
	return nil
}

// openShared opens the root of a mount, which must share its events: without that
// a umount elsewhere does not reach it, and who shares what is not ours to change.
func openShared(m MountRef) (int, error) {
	var at mountinfo.Entry
	err := self{}.table(func(e mountinfo.Entry) {
		if e.ID == m.OldID {
			at = e
		}
	})
	switch {
	case err != nil:
		return -1, err
	case shared(at) == "":
		return -1, refuse("what the mounts stand on does not share its events (mount --make-shared), so nothing reaches a mount that is covered")
	case at.Path == "/":
		return openDir("/")
	}
	fd, err := openMount(at)
	if err != nil {
		return -1, fmt.Errorf("open what the mounts stand on: %w", err)
	}
	return fd, nil
}

// onlyDead refuses unless all that the umount takes, in any mount namespace, is of
// the dead superblock, and covered. Ours is the copy of the ground.
func (s stacked) onlyDead(superblock Number, ours MountRef) error {
	namespaces, missed, err := allNamespaces()
	if err != nil {
		return err
	}
	var all []mountinfo.Entry
	for _, ns := range namespaces {
		_ = ns.file.Close()
		all = append(all, ns.table...)
	}
	if missed > 0 {
		return refuse("%d mount namespaces could not be looked at", missed)
	}
	for _, e := range lowestOnPeers(all, s.dead, s.ground) {
		if e.Parent == ours.OldID {
			continue
		}
		if number, ok := parseNumber(e.Dev); !ok || number != superblock {
			return refuse("the umount would also take what is mounted on %q in a mount namespace", e.Path)
		}
		if !slices.ContainsFunc(all, func(on mountinfo.Entry) bool { return on.Parent == e.ID && on.Path == e.Path }) {
			return refuse("nothing would be left in a mount namespace on %q", e.Path)
		}
	}
	return nil
}

// lowestOnPeers gives what stands on the mounts that receive the events of the
// ground, at the directory at which m stands on that: the umount of a copy of m
// takes these.
func lowestOnPeers(all []mountinfo.Entry, m, ground MountRef) (found []mountinfo.Entry) {
	byID := make(map[int]mountinfo.Entry, len(all))
	for _, e := range all {
		byID[e.ID] = e
	}
	directory := func(e mountinfo.Entry) string {
		below := byID[e.Parent]
		return path.Join(below.Root, strings.TrimPrefix(e.Path, below.Path))
	}
	groups, at := followers(all, shared(byID[ground.OldID])), directory(byID[m.OldID])
	for _, e := range all {
		below, known := byID[e.Parent]
		if known && (groups[shared(below)] || groups[optional(below, "master:")]) && directory(e) == at {
			found = append(found, e)
		}
	}
	return found
}
