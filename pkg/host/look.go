package host

import (
	"context"
	"errors"
	"maps"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/csi-addons/node-healer/pkg/worker"
	"github.com/csi-addons/node-healer/pkg/workerops"
)

// Question asks a worker to look at paths and to touch one superblock.
type InspectQuery struct {
	Paths []Ask
	// Probe is the mount whose superblock is to be touched; nil asks about paths
	// only.
	Probe *Mount
	// Above keeps away from the paths' last components: they lie on a
	// superblock that is known not to answer.
	Above bool
}

// Ask asks about one path.
type Ask struct {
	Path string
	// VolData is kubelet's file for the path; empty for none.
	VolData string
	// Mounted is true for a mount point: the mount table says what is there, and
	// only kubelet's file for it is read.
	Mounted bool
}

// Sight is the answer to a Question.
type Inspection struct {
	Paths map[string]PathInfo
	// Changed is true when the mount to probe was no longer there: the mount
	// table has to be read again.
	Changed bool
	// Answer is what the probed superblock said.
	Answer Answer
	// Kind is the type of the probed root, Rdev the device of a block volume
	// and of a filesystem whose mount does not show its device (btrfs).
	Kind PathKind
	Rdev Dev
	// SourceGone is true when the device node that the mount names is not there.
	SourceGone bool
	UUID       string
	Space      Space
	// Opened is what the block device said of itself.
	Opened OpenedDevice
	// Media are the blocks that could not be read, other than the first.
	Media []MediaError
	// ReadOnly is true when the kernel says that the superblock is read-only.
	ReadOnly bool
	// Newest is a unique mount id that was the highest in the kernel at the time of
	// the look: ids only grow, in all mount namespaces together. 0 below Linux 6.8.
	Newest uint64
}

// Look asks one question, in one worker round trip when the volume is healthy.
// A superblock that does not answer in time is an answer; an error means that
// the question could not be asked.
func (n *Node) Inspect(ctx context.Context, q InspectQuery) (Inspection, error) {
	if q.Probe == nil {
		return n.lookAt(ctx, q)
	}
	s, called := storageOf(*q.Probe), time.Now()
	at, first := n.probes.join(s, *q.Probe)
	for !first {
		if sight, shared, err := n.share(ctx, q, at, called); shared {
			return sight, err
		}
		at, first = n.probes.join(s, *q.Probe)
	}
	sight, err := n.askFirst(ctx, q, at)
	if sight.Answer.Silent {
		return n.silence(ctx, q, sight)
	}
	return sight, err
}

// askFirst asks for all who come meanwhile. They hear of it whatever happens:
// nobody else would be let to this storage again.
func (n *Node) askFirst(ctx context.Context, q InspectQuery, at *probing) (sight Inspection, err error) {
	defer func() { n.probes.finish(storageOf(*q.Probe), at, sight, err) }()
	err = n.atServer(ctx, *q.Probe, func() (err error) {
		sight, err = n.ask(ctx, q)
		return err
	})
	if silent(ctx, err) && !sight.Answer.Asked { // it was not its turn
		sight.Answer = Answer{Asked: true, Silent: true, Stuck: errors.Is(err, worker.ErrStuck), Elapsed: n.cfg.ProbeTimeout}
	}
	return sight, err
}

// ask has a worker touch the superblock and look at the paths. An errno counts
// when a second probe gives one too.
func (n *Node) ask(ctx context.Context, q InspectQuery) (Inspection, error) {
	count, stop := n.countWaiting(ctx, *q.Probe)
	defer stop()
	query, known := n.query(q)
	whole := n.probeOf(*q.Probe)
	var a workerops.InspectAnswer
	query.Probe = whole
	for range 2 {
		var err error
		a, err = worker.CallWithin(ctx, n.cfg.ProbeTimeout, n.cfg.Pool, workerops.Inspect, query)
		if whole.Thawed && n.waitsForThaw(ctx, *q.Probe, err) {
			whole.Thawed = false // and now without that
			a, err = worker.CallWithin(ctx, n.cfg.ProbeTimeout, n.cfg.Pool, workerops.Inspect, query)
		}
		switch {
		case silent(ctx, err):
			return Inspection{Answer: Answer{
				Asked: true, Silent: true, Stuck: errors.Is(err, worker.ErrStuck), Elapsed: n.cfg.ProbeTimeout, Waits: waits(err), Waiting: count(),
			}}, err
		case err != nil:
			return Inspection{}, err
		}
		if a.Probe.Changed {
			return Inspection{Changed: true, Answer: Answer{Asked: true}}, nil
		}
		if a.Probe.Errno == 0 {
			break
		}
	}
	sight := n.touched(*q.Probe, whole, a.Probe)
	sight.Paths = n.paths(q, query, known, a)
	sight.Answer = n.answer(*q.Probe, a.Probe)
	if sight.Changed = !n.cfg.Namespace.Tops(*q.Probe); sight.Changed {
		return sight, nil // it may be another filesystem that was touched
	}
	if whole.UUID && q.Probe.ID != 0 && sight.UUID != "" {
		n.uuids.add(q.Probe.ID, sight.UUID)
	}
	sight.Media = n.readMedia(ctx, *q.Probe, sight)
	return sight, nil
}

func (n *Node) answer(m Mount, a workerops.ProbeAnswer) Answer {
	late := n.probes.late(m, a.Elapsed > n.cfg.SlowAnswer)
	answer := Answer{Asked: true, Op: a.Op, Errno: a.Errno, Elapsed: a.Elapsed, Late: late}
	n.freeze(m, &answer)
	return answer
}

// share waits for a probe that somebody else asked for. Its silence is everybody's;
// another answer is shared by those who asked the same before it began, unless what
// was met was something else. shared is false for who has to ask now.
func (n *Node) share(ctx context.Context, q InspectQuery, at *probing, called time.Time) (_ Inspection, shared bool, _ error) {
	// As long as the one who asks may take: for two probes and for their workers.
	call, cancel := context.WithTimeout(ctx, 4*n.cfg.ProbeTimeout)
	defer cancel()
	found := Inspection{Answer: Answer{Asked: true, Silent: true, Elapsed: n.cfg.ProbeTimeout}}
	select {
	case <-at.done:
		found = at.found
	case <-call.Done():
	}
	switch {
	case found.Answer.Silent:
		sight, err := n.silence(ctx, q, found)
		return sight, true, err
	case !found.Answer.Asked || found.Changed || !sameView(at.of, *q.Probe) || called.After(at.began):
		return Inspection{}, false, nil
	}
	scanned, err := n.lookAt(ctx, q)
	found.Paths, found.Changed = scanned.Paths, !n.cfg.Namespace.Tops(*q.Probe)
	return found, true, err
}

// silence is the answer for a superblock that gives none. The paths are looked
// at without touching the volume: kubelet's files lie above it and answer even
// when it does not.
func (n *Node) silence(ctx context.Context, q InspectQuery, found Inspection) (Inspection, error) {
	mounted := q.Probe.Path
	quiet := InspectQuery{Above: true}
	var skipped []string
	for _, p := range q.Paths {
		if strings.HasPrefix(p.Path, mounted+"/") {
			skipped = append(skipped, p.Path) // the way to it leads through the volume
			continue
		}
		quiet.Paths = append(quiet.Paths, p)
	}
	scanned, err := n.lookAt(ctx, quiet)
	if err != nil && ctx.Err() == nil {
		scanned, err = n.lastSeen(quiet, err)
	}
	if err != nil {
		return Inspection{}, err
	}
	for _, p := range skipped {
		scanned.Paths[p] = PathInfo{Looked: true} // what there is to see is the silence
	}
	found.Paths = scanned.Paths
	return found, nil
}

// lastSeen stands in for a look at mount points for which there was no worker in
// time: of many volumes that hang at once, each one is to be heard of.
func (n *Node) lastSeen(q InspectQuery, err error) (Inspection, error) {
	_, known := n.query(q)
	s := Inspection{Paths: make(map[string]PathInfo, len(q.Paths))}
	for i, p := range q.Paths {
		if !p.Mounted {
			return Inspection{}, err
		}
		s.Paths[p.Path] = PathInfo{Looked: true, VolData: known[i].data}
	}
	return s, nil
}

// lookAt looks at paths only, for each filesystem that the ways to them end on by
// itself: one that hangs is the reason for itself alone not to be asked again.
func (n *Node) lookAt(ctx context.Context, q InspectQuery) (Inspection, error) {
	table, err := n.Topology()
	if err != nil {
		return Inspection{}, err
	}
	// All volumes have files on the disk that kubelet's directory lies on.
	disk := storageUnder(table, n.kubelet.Root)
	on := map[storage][]Ask{}
	for _, p := range q.Paths {
		at := p.Path
		if p.Mounted {
			at = p.VolData // all that is looked at
		}
		s := storageUnder(table, at)
		on[s] = append(on[s], p)
	}
	scanned := Inspection{Paths: make(map[string]PathInfo, len(q.Paths))}
	for s, paths := range on {
		some := InspectQuery{Paths: paths, Above: q.Above}
		query, known := n.query(some)
		var a workerops.InspectAnswer
		ask := func() (err error) {
			a, err = worker.CallWithin(ctx, n.cfg.ProbeTimeout, n.cfg.Pool, workerops.Inspect, query)
			return err
		}
		if s == disk {
			s.root = "paths" // who looks at a volume of the same disk does not wait for it
			err = n.probes.beside(s, ask)
		} else {
			err = n.probes.alone(ctx, s, ask)
		}
		if err != nil {
			return Inspection{}, err
		}
		maps.Copy(scanned.Paths, n.paths(some, query, known, a))
	}
	return scanned, nil
}

// storageUnder gives what a path lies on.
func storageUnder(table Table, p string) storage {
	parentMount, _ := table.ParentMount(p)
	return storageOf(parentMount)
}

// query asks for the paths, and gives what is known of kubelet's files for them.
func (n *Node) query(q InspectQuery) (workerops.InspectQuery, []volDataFile) {
	query := workerops.InspectQuery{Paths: make([]workerops.PathQuery, len(q.Paths))}
	known := make([]volDataFile, len(q.Paths))
	for i, p := range q.Paths {
		at := &query.Paths[i]
		*at = workerops.PathQuery{VolData: p.VolData, Above: q.Above}
		if !p.Mounted {
			at.Path = p.Path
		}
		if at.VolData != "" {
			known[i], _ = n.files.get(at.VolData)
			at.Known = known[i].stamp
		}
	}
	return query, known
}

func (n *Node) paths(q InspectQuery, query workerops.InspectQuery, known []volDataFile, a workerops.InspectAnswer) map[string]PathInfo {
	looks := make(map[string]PathInfo, len(q.Paths))
	for i, p := range q.Paths {
		got := a.Paths[i]
		l := PathInfo{
			Looked: true,
			Walk:   got.Walk,
			Leaf:   got.Leaf,
			Kind:   kindOf(got.Mode),
			Link:   got.Link,
		}
		if l.Kind == KindBlock {
			l.Rdev = Dev{Major: got.Major, Minor: got.Minor}
		}
		if file := query.Paths[i].VolData; file != "" {
			l.VolData = n.files.learn(file, known[i], got.VolData, got.Stamp)
		}
		looks[p.Path] = l
	}
	return looks
}

// touched joins what the probe said with what it was not asked again.
func (n *Node) touched(m Mount, asked *workerops.ProbeQuery, a workerops.ProbeAnswer) Inspection {
	s := Inspection{
		Kind:       kindOf(a.Mode),
		Rdev:       Dev{Major: a.Major, Minor: a.Minor},
		SourceGone: a.SourceGone,
		UUID:       a.UUID,
		Space:      Space(a.Space),
		Opened:     OpenedDevice(a.Device),
		Newest:     a.Newest,
		// The kernel refuses what a read-only mount forbids with the same errno.
		ReadOnly: a.ReadOnly && !m.Attr.Has(AttrReadOnly),
	}
	if !asked.UUID {
		s.UUID, _ = n.uuids.get(m.ID)
	}
	return s
}

// probeOf asks for a touch of the mount's superblock. With a block device below
// it, one block of that is read too: a filesystem answers from memory.
func (n *Node) probeOf(m Mount) *workerops.ProbeQuery {
	q := n.deviceOf(m)
	q.Path = m.Path
	if m.FSType != "btrfs" {
		q.SuperMajor, q.SuperMinor = m.Dev.Major, m.Dev.Minor
	}
	q.Around = n.fewBeside(m)
	q.Root = !slices.Contains(rootInMemory, m.FSType)
	_, told := n.uuids.get(m.ID)
	q.UUID = m.onDevice() && !told
	q.Space = true
	q.Backing = true
	q.Source = m.deviceSource()
	q.Thawed = slices.Contains(freezable, m.FSType) && n.probes.left(thawOf(m)) == nil
	return &q
}

// maxBeside bounds the mounts at which the kernel has to look for a clone of the
// directory above one of them: some 30 ns each, while nobody else may mount.
const maxBeside = 1000

// fewBeside is true where a clone may be made of the directory above a mount
// point: one that has no other mount in it, as all of kubelet's.
func (n *Node) fewBeside(m Mount) bool {
	if k := n.kubelet.Layout(m.Path).Kind; k == LayoutOther || k == LayoutSubpath {
		return false
	}
	table, err := n.Topology()
	return err == nil && table.Beside(m) <= maxBeside
}

// deviceOf asks for a read of the device below a mount, if it has one.
func (n *Node) deviceOf(m Mount) workerops.ProbeQuery {
	if m.Dev.Major == 0 {
		return workerops.ProbeQuery{} // btrfs tells by its source
	}
	name := n.cfg.Sysfs.Name(m.Dev)
	if name == "" {
		return workerops.ProbeQuery{}
	}
	return workerops.ProbeQuery{Device: "/dev/" + name, DeviceMajor: m.Dev.Major, DeviceMinor: m.Dev.Minor}
}

// rootInMemory are the filesystem types that keep the root directory in memory
// for as long as they are mounted: to open it would say nothing.
var rootInMemory = []string{"ext2", "ext3", "ext4", "xfs", "btrfs", "tmpfs", "ramfs", "devtmpfs"}

// onDevice is true when the mount's device number may be a block device:
// anonymous ones have major 0.
func (m Mount) onDevice() bool { return m.Dev.Major != 0 || m.deviceSource() != "" }

// deviceSource gives the source when it is what tells the block device (btrfs
// shows an anonymous number).
func (m Mount) deviceSource() string {
	if m.FSType == "btrfs" && strings.HasPrefix(m.Source, "/dev/") && path.Clean(m.Source) == m.Source {
		return m.Source
	}
	return ""
}

// silent is true when a worker got no answer, as far as that says something: one
// that was ended early, because its caller's time was over, says nothing.
func silent(ctx context.Context, err error) bool {
	return errors.Is(err, worker.ErrStuck) || errors.Is(err, worker.ErrSilent) && ctx.Err() == nil
}

// waits tells where in the kernel a silent worker waited.
func waits(err error) []string {
	var silent interface{ Waits() []string }
	if errors.As(err, &silent) {
		return silent.Waits()
	}
	return nil
}

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
