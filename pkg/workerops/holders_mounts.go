package workerops

import (
	"errors"
	"path"
	"slices"
	"strings"

	"github.com/csi-addons/node-healer/pkg/mount"
)

// mounted is what the scan keeps of every mount.
type mounted struct {
	dev Number
	// memory is true for the filesystems that device nodes usually lie on.
	memory bool
}

// mountAt is one mount of a namespace.
type mountAt struct {
	mounted
	id int
	// path is as seen from the root of the namespace.
	path string
}

// namespaceTable is the mount table of one namespace.
type namespaceTable struct {
	inode uint64
	// processes are those that live in it: each may show its table.
	processes []process
	mounts    []mountAt
	// whole is true when all its mounts are known: a process whose root is a
	// directory deeper down is only shown what is mounted beneath that.
	whole bool
	// asked is true when one of them is of a superblock that was asked for.
	asked bool
}

// readMountTables reads the mount table of each namespace once.
func (s *scan) readMountTables() {
	for _, p := range s.processes {
		if p.foreign {
			continue
		}
		if s.tables[p.namespace] == nil {
			s.tables[p.namespace] = &namespaceTable{inode: p.namespace}
		}
		t := s.tables[p.namespace]
		t.processes = append(t.processes, p)
	}
	var all []*namespaceTable
	for _, t := range s.tables {
		slices.SortStableFunc(t.processes, func(a, b process) int { return len(a.root) - len(b.root) })
		all = append(all, t)
	}
	each(s, all, s.readTable, s.keepTable)
}

// tableResult is what the processes of one namespace show of it.
type tableResult struct {
	mounts []mountAt
	whole  bool
	// ended is true when all of them have ended, and the namespace most likely with
	// them.
	ended bool
}

// readTable asks the processes of a namespace until one shows its mounts.
func (s *scan) readTable(t *namespaceTable) tableResult {
	ended := true
	for _, p := range t.processes {
		mounts, err := s.readTableOf(p)
		if err == nil && len(mounts) > 0 { // there are none where its root is on a detached mount
			return tableResult{mounts: mounts, whole: p.root == "/"}
		}
		if errors.Is(err, errTooManyMounts) {
			return tableResult{} // the next process would show as many
		}
		ended = ended && err != nil && (gone(err) || errors.Is(err, errEnded))
	}
	return tableResult{ended: ended}
}

func (s *scan) readTableOf(p process) (mounts []mountAt, _ error) {
	err := s.left.readTable(s.proc, p.dir, p.namespace, func(m mount.Mount) error {
		at := mountAt{id: m.OldID, path: m.Path, mounted: mounted{dev: Number(m.Dev), memory: mount.IsType(m.FSType, mount.DeviceNodes)}}
		if p.root != "/" {
			at.path = path.Join(p.root, m.Path)
		}
		mounts = append(mounts, at)
		return nil
	})
	return mounts, err
}

// keepTable keeps the mounts, and puts those of what was asked for into the answer.
func (s *scan) keepTable(t *namespaceTable, r tableResult, ok bool) {
	t.mounts, t.whole = r.mounts, r.whole
	s.answer.Cut = s.answer.Cut || !ok || !r.whole && !r.ended
	for _, at := range t.mounts {
		s.mounts[at.id] = at.mounted
		if !s.superblocks[at.dev] {
			continue
		}
		t.asked = true
		held := s.answer.Superblocks[at.dev]
		held.Mounts = append(held.Mounts, HeldMount{Namespace: t.inode, Path: at.path, PID: t.processes[0].pid})
		s.answer.Superblocks[at.dev] = held
	}
}

// resolve returns the mounts that a path of a namespace may be on. Text cannot
// tell apart mounts stacked at one mount point: a process that came before the
// upper one is still on the lower one.
func (t *namespaceTable) resolve(text string) []mountAt {
	var best []mountAt
	if !t.asked {
		return nil
	}
	for _, at := range t.mounts {
		if !beneath(at.path, text) || len(best) > 0 && len(at.path) < len(best[0].path) {
			continue
		}
		if len(best) > 0 && len(at.path) > len(best[0].path) {
			best = nil
		}
		best = append(best, at)
	}
	return best
}

func beneath(dir, p string) bool {
	rest, is := strings.CutPrefix(p, strings.TrimSuffix(dir, "/"))
	return is && (rest == "" || rest[0] == '/' || rest == " (deleted)")
}
