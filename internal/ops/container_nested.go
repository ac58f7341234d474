package ops

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/mount"
	"github.com/csi-addons/node-healer/internal/operation"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// nested is a copy, by a descriptor, of a mount inside a dead mount, such as a subPath or a
// Secret that the pod mounts in the volume. It is on its way into the clone.
type nested struct {
	// name is the path below the root of the dead mount, path that in the container.
	name, path string
	fd         int
}

// copyNested asks the dead filesystems once more, and puts copies of the mounts inside the dead
// mounts into the clones, before a clone is placed anywhere: a kill in between leaves the dead
// mount with all of them, or the clone with all. The thread is in the container's namespace. It
// asks from the host's namespace, and comes back: a thread that waits for a filesystem inside of
// a container keeps all mounts of the container, of other volumes too.
func copyNested(home *os.File, in *containerNamespace, swaps []*swap) error {
	for _, s := range swaps {
		w := s.query
		switch {
		case s.err != nil:
		case w.Ours == (facts.Ref{}): // no earlier swap left anything
			s.deadClone, s.nested, s.err = in.cloneDead(w.Container)
		case s.position == facts.BeneathDead && !w.Ours.Same(w.Container.Mount.Ref()): // the dead mount is on ours
			var fd int
			s.deadClone, fd, s.err = in.cloneTop(w.Container)
			closeFD(&fd)
		}
	}
	if err := operation.EnterMounts(home); err != nil {
		return err
	}
	for _, s := range swaps {
		switch {
		case s.err != nil || s.deadClone < 0 || s.dead.Ended:
		case s.dead.Stale:
			s.err = checkStaleTwice(s.deadClone)
			if s.err == nil && s.clone >= 0 && answers(s.clone) != 0 {
				s.err = refuse("what was to come in its place does not answer")
			}
		default:
			s.err = stillDead(s.query.Container.Mount.FSType, answers(s.deadClone))
		}
		for _, n := range s.nested {
			if s.err == nil {
				s.err = n.attach(s.clone)
			}
		}
	}
	return in.enter()
}

// cloneDead clones a dead mount, and the mounts inside it. Nothing may ask the dead filesystem
// for a name: when the lookup fails, the kernel unmounts whatever is mounted at that name
// (d_invalidate). Only what the kernel has cached is walked.
func (c *containerNamespace) cloneDead(t facts.ContainerMount) (clone int, all []nested, err error) {
	clone, fd, err := c.cloneTop(t)
	if err != nil {
		return -1, nil, err
	}
	defer unix.Close(fd)
	dead, known := mount.Find(c.table, t.Mount.OldID)
	on := slices.DeleteFunc(slices.Clone(c.table), func(e facts.Mount) bool {
		return e.OldParent != t.Mount.OldID || e.OldID == e.OldParent
	})
	if len(on) > 0 && (!known || dead.Propagation.Shared != 0) {
		err = refuse("what is mounted on %q in the container shares its events with others", on[0].Path)
	}
	for _, e := range on {
		if err != nil {
			break
		}
		n := nested{name: strings.TrimPrefix(e.Path, strings.TrimSuffix(dead.Path, "/")+"/"), path: e.Path}
		if n.fd, err = c.cloneNested(e, n.name, fd); err == nil {
			all = append(all, n)
		}
	}
	return clone, all, err
}

// cloneNested clones the mount e at a name below the root of the dead mount, which fd is on, with
// all mounts inside e.
func (c *containerNamespace) cloneNested(e facts.Mount, name string, fd int) (int, error) {
	from, err := openBeneath(fd, name, mount.ResolveCached)
	if err != nil {
		return -1, fmt.Errorf("%w: what is mounted on %q in the container cannot be reached without the dead filesystem: %w", operation.ErrRefused, e.Path, err)
	}
	defer unix.Close(from)
	if ref, err := c.thread.refOf(from); err != nil || ref.OldID != e.OldID {
		return -1, refuse("several mounts are on %q in the container", e.Path)
	}
	copied, err := mount.CloneTree(from)
	if err != nil {
		return -1, fmt.Errorf("clone what is mounted on %q: %w", e.Path, err)
	}
	return copied, nil
}

// attach mounts the copy in the clone, at the same path. The thread has to be in the namespace in
// which the clone was made: the kernel moves a mount into a detached one only from there.
func (n nested) attach(clone int) error {
	to, err := openBeneath(clone, n.name, unix.RESOLVE_NO_XDEV)
	if err != nil {
		return fmt.Errorf("%w: %q, on which something is mounted in the container, is not in the healed volume: %w", operation.ErrRefused, n.path, err)
	}
	defer unix.Close(to)
	err = mount.MoveOnto(n.fd, to)
	if errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("%w: this kernel cannot keep what is mounted on %q in the container (Linux 6.15 can): %w", operation.ErrRefused, n.path, err)
	}
	if err != nil {
		return fmt.Errorf("keep what is mounted on %q: %w", n.path, err)
	}
	return nil
}
