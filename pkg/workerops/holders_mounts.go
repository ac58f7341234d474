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

// spot is one mount of a namespace.
type spot struct {
	mounted
	id int
	// path is as seen from the root of the namespace.
	path string
}

// space is one mount namespace.
type space struct {
	// ask are the processes to ask for its mount table, the best first.
	ask []process
	// whole is true when all its mounts are known: a process whose root is a
	// directory deeper down is only shown what is mounted beneath that.
	whole bool
	// ended is true when the last process that was asked has ended, and the namespace
	// most likely with it.
	ended bool
	spots []spot
	// asked is true when one of them is of a superblock that was asked for.
	asked bool
}

// readMountTables reads the mount table of each namespace, most often once.
func (s *scan) readMountTables() {
	for _, p := range s.processes {
		if p.foreign {
			continue
		}
		if s.spaces[p.space] == nil {
			s.spaces[p.space] = &space{}
		}
		s.spaces[p.space].ask = append(s.spaces[p.space].ask, p)
	}
	for _, sp := range s.spaces {
		slices.SortStableFunc(sp.ask, func(a, b process) int { return len(a.root) - len(b.root) })
	}
	for {
		var next []process
		for _, sp := range s.spaces {
			if !sp.whole && len(sp.ask) > 0 {
				next = append(next, sp.ask[0])
				sp.ask = sp.ask[1:]
			}
		}
		if len(next) == 0 || s.answer.Cut {
			break
		}
		each(s, next, s.readTable, s.keepTable)
	}
	s.readHidden()
	for inode, sp := range s.spaces {
		s.answer.Cut = s.answer.Cut || !sp.whole && (!sp.ended || len(sp.spots) > 0)
		s.listMounts(inode, sp)
	}
}

// table is what one process shows of its namespace.
type table struct {
	spots []spot
	err   error
}

func (s *scan) readTable(p process) table {
	var t table
	t.err = s.left.readTable(s.proc, p.dir, p.space, func(m mount.Mount) error {
		at := spot{id: m.OldID, path: m.Path, mounted: mounted{dev: Number(m.Dev), memory: mount.IsType(m.FSType, mount.DeviceNodes)}}
		if p.root != "/" {
			at.path = path.Join(p.root, m.Path)
		}
		t.spots = append(t.spots, at)
		return nil
	})
	return t
}

func (s *scan) keepTable(p process, t table, ok bool) {
	sp := s.spaces[p.space]
	if !ok || t.err != nil || len(t.spots) == 0 {
		sp.ended = ok && t.err != nil && (gone(t.err) || errors.Is(t.err, errEnded))
		return // or its root is on a mount that is in no namespace
	}
	sp.whole = p.root == "/"
	if sp.whole {
		sp.spots = nil
	}
	sp.keep(s, t.spots)
	// The others beneath the same root have nothing to add.
	sp.ask = slices.DeleteFunc(sp.ask, func(o process) bool { return o.root == p.root })
}

// keep adds mounts that are not known yet.
func (sp *space) keep(s *scan, spots []spot) {
	known := make(map[int]bool, len(sp.spots))
	for _, at := range sp.spots {
		known[at.id] = true
	}
	for _, at := range spots {
		if !known[at.id] {
			sp.spots = append(sp.spots, at)
			s.mounts[at.id] = at.mounted
		}
	}
}

// listMounts puts the mounts of what was asked for into the answer.
func (s *scan) listMounts(inode uint64, sp *space) {
	resident := 0
	for _, p := range s.processes {
		if p.space == inode {
			resident = p.pid
			break
		}
	}
	for _, at := range sp.spots {
		if !s.superblocks[at.dev] {
			continue
		}
		sp.asked = true
		held := s.answer.Superblocks[at.dev]
		held.Mounts = append(held.Mounts, HeldMount{Namespace: inode, Path: at.path, PID: resident})
		s.answer.Superblocks[at.dev] = held
	}
}

// resolve gives the mounts that a path of a namespace may be on. Text cannot
// tell between mounts stacked at one place: whoever came before the upper one
// is still on the lower one.
func (sp *space) resolve(text string) []spot {
	var best []spot
	if !sp.asked {
		return nil
	}
	for _, at := range sp.spots {
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
