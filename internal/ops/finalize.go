package ops

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/mount"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// FinalizeQuery names a placed clone that is to become what was planned.
type FinalizeQuery struct {
	facts.RebindPlan
	// Mount is the mount expected at Target, alone.
	Mount facts.Ref
	// Budget bounds finding the copies, and each change of them.
	Budget time.Duration
}

// FinalizeAnswer says how far the attributes got.
type FinalizeAnswer struct {
	// Left counts copies in other mount namespaces that are still read-only; -1 when
	// that took too long to find out. The mount is usable, and keeps its mark.
	Left int
}

func finalize(q FinalizeQuery) (FinalizeAnswer, error) {
	var none FinalizeAnswer
	pause("finalize")
	target, err := openTarget(q.Target)
	if err != nil {
		return none, err
	}
	defer target.close()
	on := q.Covers.Ref()
	if on == (facts.Ref{}) {
		if on, err = target.parent(); err != nil {
			return none, err
		}
	}
	p, err := openPlaced(target, q.Mount, on)
	if err != nil {
		return none, err
	}
	defer unix.Close(p.fd)
	pause("finalize/checked")
	var copies *propagatedMounts
	left, err := p.finalize(q, &copies)
	if err == nil {
		return FinalizeAnswer{Left: left}, nil
	}
	// Something arrived on top meanwhile: what lies beneath it must not be writable,
	// because its next umount would uncover it.
	if copies != nil {
		copies.set(facts.AttrPlaceholder)
	}
	if backErr := mount.SetAttr(p.fd, facts.AttrPlaceholder, 0); backErr != nil {
		return none, fmt.Errorf("%w; making it read-only again: %w", err, backErr)
	}
	return none, err
}

// placed is a clone at its mount point, on its way to its final attributes. It is held
// by a descriptor: whatever happens to the path meanwhile, no other mount changes.
type placed struct {
	target   targetHandle
	fd       int
	ours, on facts.Ref
}

// openPlaced opens what is topmost at a mount point, if it is ours.
func openPlaced(target targetHandle, ours, on facts.Ref) (placed, error) {
	fd, top, err := target.top()
	if err != nil {
		return placed{}, err
	}
	if !top.Same(ours) {
		_ = unix.Close(fd)
		return placed{}, refuse("%s is at the mount point now", top)
	}
	return placed{target: target, fd: fd, ours: top, on: on}, nil
}

// finalize makes the mount usable, then its copies, and then takes the mark off. It
// checks before and after each change that the mount is alone. copies is set once there
// may be some.
func (p placed) finalize(q FinalizeQuery, copies **propagatedMounts) (left int, err error) {
	if err := p.alone(); err != nil {
		return 0, err
	}
	pause("finalize/alone")
	if err := p.set(q.Attr|facts.AttrUnfinalized, 0); err != nil {
		return 0, err
	}
	pause("finalize/set")
	*copies = findPropagatedMounts(p.ours, p.on, q.Budget)
	pause("finalize/copies")
	if left = (*copies).set(q.Attr); left != 0 {
		return left, nil
	}
	pause("unmark/checked")
	if err := p.alone(); err != nil {
		return 0, err
	}
	pause("unmark/alone")
	propagation := uint64(0) // that which it got from its parent mount
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

func (p placed) alone() error { return p.target.checkAlone(p.ours, p.on) }

func (p placed) set(attr facts.Attr, propagation uint64) error {
	if err := mount.SetAttr(p.fd, attr, propagation); err != nil {
		return err
	}
	return p.alone()
}
