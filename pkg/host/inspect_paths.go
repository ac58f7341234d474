package host

import (
	"context"
	"errors"
	"maps"
	"syscall"

	"github.com/csi-addons/node-healer/internal/ops"
)

// PathQuery asks about one path.
type PathQuery struct {
	Path string
	// VolData is kubelet's file for the path; empty for none.
	VolData string
	// Mounted is true for a mount point: the mount table says what is there, and
	// only kubelet's file for it is read.
	Mounted bool
}

// PathInfo is what a worker found at the end of a path.
type PathInfo struct {
	// Inspected is false when no worker answered for this path.
	Inspected bool
	// ParentErrno is the error of the walk to the last component: ELOOP for a symbolic
	// link on the way.
	ParentErrno syscall.Errno
	// Errno is the error of statx(2) of the last component itself, which the
	// volume may have answered.
	Errno syscall.Errno
	Kind  PathKind
	// Link is the text of a symbolic link.
	Link string
	// Rdev is the device of a block device node.
	Rdev Dev
	// VolData is kubelet's vol_data.json for the path; nil when there is none.
	VolData *VolData
	// VolDataErr is why a vol_data.json that is there tells nothing; nil otherwise.
	VolDataErr error
}

// Missing reports whether the path was inspected and does not exist.
func (p PathInfo) Missing() bool {
	gone := func(e syscall.Errno) bool { return e == syscall.ENOENT || e == syscall.ENOTDIR }
	return p.Inspected && (gone(p.ParentErrno) || p.ParentErrno == 0 && gone(p.Errno))
}

// PathKind is the type of the file at a path.
type PathKind string

// The kinds of a path.
const (
	KindNone      PathKind = ""
	KindDirectory PathKind = "directory"
	KindFile      PathKind = "regular file"
	KindBlock     PathKind = "block device"
	KindSymlink   PathKind = "symbolic link"
	KindOther     PathKind = "special file"
)

// kindOf translates st_mode.
func kindOf(mode uint32) PathKind {
	switch mode & syscall.S_IFMT {
	case syscall.S_IFDIR:
		return KindDirectory
	case syscall.S_IFREG:
		return KindFile
	case syscall.S_IFBLK:
		return KindBlock
	case syscall.S_IFLNK:
		return KindSymlink
	case 0:
		return KindNone
	default:
		return KindOther
	}
}

// inspectPaths examines paths only, with a worker for each filesystem that the walks
// end on: one that hangs delays no path on another.
func (n *Node) inspectPaths(ctx context.Context, q InspectQuery) (Inspection, error) {
	table, err := n.Topology()
	if err != nil {
		return Inspection{}, err
	}
	// All volumes have files on the disk that kubelet's directory lies on.
	disk := storageUnder(table, n.kubelet.Root)
	on := map[storage][]PathQuery{}
	for _, p := range q.Paths {
		file := p.Path
		if p.Mounted {
			file = p.VolData // all that is read
		}
		s := storageUnder(table, file)
		on[s] = append(on[s], p)
	}
	in := Inspection{Paths: make(map[string]PathInfo, len(q.Paths))}
	for s, paths := range on {
		some := InspectQuery{Paths: paths, ParentsOnly: q.ParentsOnly}
		query, known := n.pathQueries(some)
		var a ops.InspectAnswer
		ask := func() (err error) {
			a, err = n.ask(ctx, s, q.Routine, query)
			return err
		}
		if s == disk {
			s.root = "paths" // a probe of a volume on the same disk does not wait for it
			err = n.probes.unlessStuck(s, ask)
		} else {
			err = n.probes.serialize(ctx, s, ask)
		}
		if err != nil {
			return Inspection{}, err
		}
		maps.Copy(in.Paths, n.pathInfos(some, query, known, a))
	}
	return in, nil
}

// lastKnown stands in for the inspection of mount points when no worker was free in
// time: when many volumes hang at once, each of them is reported.
func (n *Node) lastKnown(q InspectQuery, err error) (Inspection, error) {
	_, known := n.pathQueries(q)
	in := Inspection{Paths: make(map[string]PathInfo, len(q.Paths))}
	for i, p := range q.Paths {
		if !p.Mounted {
			return Inspection{}, err
		}
		in.Paths[p.Path] = PathInfo{Inspected: true, VolData: known[i].data}
	}
	return in, nil
}

// pathQueries returns a worker's query for the paths, and what is cached of kubelet's
// files for them.
func (n *Node) pathQueries(q InspectQuery) (ops.InspectQuery, []volDataFile) {
	query := ops.InspectQuery{Paths: make([]ops.PathQuery, len(q.Paths))}
	known := make([]volDataFile, len(q.Paths))
	for i, p := range q.Paths {
		ask := &query.Paths[i]
		*ask = ops.PathQuery{VolData: p.VolData, ParentOnly: q.ParentsOnly}
		if !p.Mounted {
			ask.Path = p.Path
		}
		if ask.VolData != "" {
			known[i], _ = n.files.get(ask.VolData)
			ask.Known = known[i].stamp
		}
	}
	return query, known
}

// errNoVolData is what ails a torn file.
var errNoVolData = errors.New("no valid JSON")

func (n *Node) pathInfos(q InspectQuery, query ops.InspectQuery, known []volDataFile, a ops.InspectAnswer) map[string]PathInfo {
	infos := make(map[string]PathInfo, len(q.Paths))
	for i, p := range q.Paths {
		got := a.Paths[i]
		info := PathInfo{
			Inspected:   true,
			ParentErrno: got.ParentErrno,
			Errno:       got.Errno,
			Kind:        kindOf(got.Mode),
			Link:        got.Link,
		}
		if info.Kind == KindBlock {
			info.Rdev = Dev{Major: got.Major, Minor: got.Minor}
		}
		if file := query.Paths[i].VolData; file != "" {
			info.VolData = n.files.learn(file, known[i], got.VolData, got.Stamp)
			switch {
			case got.VolDataErrno != 0:
				info.VolDataErr = got.VolDataErrno
			case info.VolData == nil && got.VolData != nil:
				info.VolDataErr = errNoVolData
			}
		}
		infos[p.Path] = info
	}
	return infos
}
