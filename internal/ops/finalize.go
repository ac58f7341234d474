package ops

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/mount"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// FinalizeQuery names a placeholder that is to get its final attributes.
type FinalizeQuery struct {
	// PlacePlan names the placeholder as Placed, which is expected alone at Target.
	facts.PlacePlan
	// Budget bounds finding the placeholder's copies in other mount namespaces, and each
	// change of their attributes.
	Budget time.Duration
}

// finalize returns how many copies in other mount namespaces are still read-only; -1 when that
// could not be found out. The mount itself is writable then and keeps AttrUnfinalized, by
// which the next call knows that copies are left.
func finalize(q FinalizeQuery) (left int, err error) {
	pause("finalize")
	target, err := openTarget(q.Target)
	if err != nil {
		return 0, err
	}
	defer target.close()
	parent := q.Dead.Ref()
	if q.Position != facts.OnDead {
		if parent, err = target.parent(); err != nil {
			return 0, err
		}
	}
	p, err := openPlaced(target, q.Placed, parent)
	if err != nil {
		return 0, err
	}
	defer unix.Close(p.fd)
	pause("finalize/checked")
	var copies *propagatedMounts
	if left, err = p.finalize(q, &copies); err == nil {
		return left, nil
	}
	// Another mount came on top meanwhile. A driver's umount takes that one and uncovers
	// ours, and what the driver then removes would be the volume's files: so ours must not
	// stay writable.
	if copies != nil {
		copies.set(facts.AttrPlaceholder)
	}
	if backErr := mount.SetAttr(p.fd, facts.AttrPlaceholder, 0); backErr != nil {
		return 0, fmt.Errorf("%w; making it read-only again: %w", err, backErr)
	}
	return 0, err
}

// placed is a placeholder, ours, at its mount point. Its attributes are set by the descriptor
// fd: whatever is mounted at the path meanwhile, no other mount changes.
type placed struct {
	target       targetHandle
	fd           int
	ours, parent facts.Ref
}

// openPlaced opens what is topmost at a mount point, if it is ours. parent is what ours has to
// be mounted on.
func openPlaced(target targetHandle, ours, parent facts.Ref) (placed, error) {
	fd, err := target.open(ours)
	return placed{target: target, fd: fd, ours: ours, parent: parent}, err
}

// finalize sets the final attributes of the mount, then those of its copies in other mount
// namespaces, and clears AttrUnfinalized last: a kill in between leaves the mark, and the next
// call goes on. It checks before and after each change that the mount is alone at its mount
// point. copies is set as soon as copies may be writable.
func (p placed) finalize(q FinalizeQuery, copies **propagatedMounts) (left int, err error) {
	if err := p.alone(); err != nil {
		return 0, err
	}
	pause("finalize/alone")
	if err := p.set(q.Attr|facts.AttrUnfinalized, 0); err != nil {
		return 0, err
	}
	pause("finalize/set")
	*copies = findPropagatedMounts(p.ours, p.parent, q.Budget)
	pause("finalize/copies")
	if left = (*copies).set(q.Attr); left != 0 {
		return left, nil
	}
	pause("unmark/checked")
	if err := p.alone(); err != nil {
		return 0, err
	}
	pause("unmark/alone")
	propagation := uint64(0) // it keeps the one that it got from its parent mount
	switch {
	case q.Shared:
		propagation = unix.MS_SHARED
	case q.Private:
		propagation = unix.MS_PRIVATE
	}
	if err := p.set(q.Attr, propagation); err != nil {
		return 0, err
	}
	pause("unmark/set")
	return 0, nil
}

// alone refuses unless ours is the only mount at its mount point.
func (p placed) alone() error { return p.target.checkAlone(p.ours, p.parent) }

func (p placed) set(attr facts.Attr, propagation uint64) error {
	if err := mount.SetAttr(p.fd, attr, propagation); err != nil {
		return err
	}
	return p.alone()
}
