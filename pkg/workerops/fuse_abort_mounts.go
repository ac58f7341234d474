package workerops

import (
	"errors"
	"path"
	"slices"

	"github.com/csi-addons/node-healer/pkg/mount"
)

// namespaceMount is one mount in one mount namespace.
type namespaceMount struct {
	// namespace is the inode number of the mount namespace.
	namespace uint64
	// path is as seen from the root of that namespace.
	path string
	// pid is a process in the namespace.
	pid int
}

// mountsOf returns the mounts of a superblock in the mount namespaces of the processes,
// but for those with another owner than the host's. The table of each is read once.
func (s *scan) mountsOf(dev mount.Dev) (found []namespaceMount) {
	byNamespace := map[uint64][]process{}
	for _, p := range s.processes {
		if !p.foreign {
			byNamespace[p.namespace] = append(byNamespace[p.namespace], p)
		}
	}
	var all [][]process
	for _, in := range byNamespace {
		slices.SortStableFunc(in, func(a, b process) int { return len(a.root) - len(b.root) })
		all = append(all, in)
	}
	each(s, all, func(in []process) tableResult { return s.readTable(in, dev) }, func(_ []process, r tableResult, ok bool) {
		found = append(found, r.mounts...)
		s.cut = s.cut || !ok || !r.whole && !r.ended
	})
	return found
}

// tableResult is what the processes of one namespace show of it.
type tableResult struct {
	// mounts are those of the superblock.
	mounts []namespaceMount
	// whole is true when all mounts of the namespace were shown: a process whose root is
	// a directory deeper down is only shown what is mounted beneath that.
	whole bool
	// ended is true when all of them have ended, and the namespace most likely with
	// them.
	ended bool
}

// readTable asks the processes of a namespace until one shows its mounts.
func (s *scan) readTable(in []process, dev mount.Dev) tableResult {
	ended := true
	for _, p := range in {
		var of []namespaceMount
		shown := false // nothing is where its root is on a detached mount
		err := s.left.readTable(s.proc, p.dir, p.namespace, func(m mount.Mount) error {
			if shown = true; m.Dev != dev {
				return nil
			}
			at := namespaceMount{namespace: p.namespace, path: m.Path, pid: in[0].pid}
			if p.root != "/" {
				at.path = path.Join(p.root, m.Path)
			}
			of = append(of, at)
			return nil
		})
		if err == nil && shown {
			return tableResult{mounts: of, whole: p.root == "/"}
		}
		if errors.Is(err, errTooManyMounts) {
			return tableResult{} // the next process would show as many
		}
		ended = ended && err != nil && (gone(err) || errors.Is(err, errEnded))
	}
	return tableResult{ended: ended}
}
