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

// finalize sets the final attributes of the mount, then those of its copies in other mount
// namespaces, and clears AttrUnfinalized last: a kill in between leaves the mark, by which the next
// call knows that copies are left. It checks before and after each change that the mount is alone at
// its mount point.
//
// It returns how many copies are still read-only; -1 when that could not be found out. The mount
// itself is writable then, and keeps the mark.
func finalize(q FinalizeQuery) (left int, err error) {
	pause("finalize")
	target, err := openTarget(q.Target)
	if err != nil {
		return 0, err
	}
	defer target.close()
	p := placement{target: target, ours: q.Placed, parent: q.Dead.Ref()}
	if q.Position != facts.OnDead {
		if p.parent, err = target.parent(); err != nil {
			return 0, err
		}
	}
	if p.clone, err = target.open(p.ours); err != nil {
		return 0, err
	}
	defer closeFD(&p.clone)
	pause("finalize/checked")
	var copies *propagatedMounts // nil as long as no copy can be writable
	defer func() {
		if err == nil {
			return
		}
		// Another mount came on top meanwhile. A driver's umount takes that one and uncovers
		// ours, and what the driver then removes would be the volume's files: so ours must not
		// stay writable.
		if copies != nil {
			copies.set(facts.AttrPlaceholder)
		}
		if backErr := mount.SetAttr(p.clone, facts.AttrPlaceholder, 0); backErr != nil {
			err = fmt.Errorf("%w; making it read-only again: %w", err, backErr)
		}
	}()
	if err := p.alone(); err != nil {
		return 0, err
	}
	pause("finalize/alone")
	if err := p.set(q.Attr|facts.AttrUnfinalized, 0); err != nil {
		return 0, err
	}
	pause("finalize/set")
	copies = findPropagatedMounts(p.ours, p.parent, q.Budget)
	pause("finalize/copies")
	if left = copies.set(q.Attr); left != 0 {
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

// set sets the attributes of ours by its descriptor, so that no other mount changes that came to
// the mount point meanwhile, and checks that there is none.
func (p *placement) set(attr facts.Attr, propagation uint64) error {
	if err := mount.SetAttr(p.clone, attr, propagation); err != nil {
		return err
	}
	return p.alone()
}
