package host

import (
	"context"
	"errors"
	"path"
	"strings"

	"github.com/csi-addons/node-healer/pkg/touch"
	"github.com/csi-addons/node-healer/pkg/worker"
)

// Question asks a worker to look at paths and to touch one superblock.
type Question struct {
	Paths []string
	// Probe is the mount whose superblock is to be touched; nil asks about paths
	// only.
	Probe *Mount
	// Above keeps away from the paths' last components: they lie on a
	// superblock that is known not to answer.
	Above bool
}

// Sight is the answer to a Question.
type Sight struct {
	Paths map[string]PathLook
	// Answer is what the probed superblock said.
	Answer Answer
	// Changed is true when the mount to probe was no longer there: the mount
	// table has to be read again.
	Changed bool
	// Kind is the type of the probed root, Rdev the device of a block volume
	// and of a filesystem whose mount does not show its device (btrfs).
	Kind PathKind
	Rdev Dev
	// SourceGone is true when the device node that the mount names is not there.
	SourceGone bool
	UUID       string
}

// Look asks one question in one worker round trip. A superblock that does not
// answer in time is an answer; an error means that the question could not be
// asked.
func (n *Node) Look(ctx context.Context, q Question) (Sight, error) {
	query := touch.LookQuery{Paths: make([]touch.PathQuery, len(q.Paths))}
	for i, p := range q.Paths {
		query.Paths[i] = touch.PathQuery{Path: p, VolData: n.kubelet.Layout(p).VolData, Above: q.Above}
	}
	if q.Probe != nil {
		query.Probe = n.probeOf(*q.Probe)
	}
	if q.Probe != nil && n.stuck.still(*q.Probe) {
		return n.silence(ctx, query, true)
	}
	call, cancel := context.WithTimeout(ctx, n.cfg.ProbeTimeout)
	defer cancel()
	a, err := worker.Call(call, n.cfg.Pool, touch.Look, query)
	silent := errors.Is(err, worker.ErrSilent) || errors.Is(err, worker.ErrStuck)
	switch {
	case err == nil:
		return sight(q, a), nil
	case !silent || q.Probe == nil || ctx.Err() != nil:
		return Sight{}, err
	}
	if q.Probe != nil {
		n.stuck.note(*q.Probe, err)
	}
	return n.silence(ctx, query, errors.Is(err, worker.ErrStuck))
}

// silence is the answer for a superblock that gives none. The paths are looked
// at again without touching the volume: kubelet's files lie above it and answer
// even when it does not.
func (n *Node) silence(ctx context.Context, query touch.LookQuery, stuck bool) (Sight, error) {
	mounted := query.Probe.Path
	query.Probe = nil
	var q Question
	var skipped []string
	above := query.Paths[:0:0]
	for _, p := range query.Paths {
		if strings.HasPrefix(p.Path, mounted+"/") {
			skipped = append(skipped, p.Path) // the way to it leads through the volume
			continue
		}
		p.Above = true
		above = append(above, p)
		q.Paths = append(q.Paths, p.Path)
	}
	query.Paths = above
	call, cancel := context.WithTimeout(ctx, n.cfg.ProbeTimeout)
	defer cancel()
	a, err := worker.Call(call, n.cfg.Pool, touch.Look, query)
	if err != nil {
		return Sight{}, err
	}
	s := sight(q, a)
	for _, p := range skipped {
		s.Paths[p] = PathLook{Looked: true} // what there is to see is the silence
	}
	s.Answer = Answer{Asked: true, Silent: true, Stuck: stuck, Elapsed: n.cfg.ProbeTimeout}
	return s, nil
}

func sight(q Question, a touch.LookAnswer) Sight {
	s := Sight{Paths: make(map[string]PathLook, len(q.Paths))}
	for i, p := range q.Paths {
		got := a.Paths[i]
		l := PathLook{
			Looked: true,
			Walk:   got.Walk,
			Leaf:   got.Leaf,
			Kind:   kindOf(got.Mode),
			Link:   got.Link,
		}
		if l.Kind == KindBlock {
			l.Rdev = Dev{Major: got.Major, Minor: got.Minor}
		}
		if got.VolData != nil {
			// A torn file is evidence of nothing.
			if d, err := ParseVolData(got.VolData); err == nil {
				l.VolData = &d
			}
		}
		s.Paths[p] = l
	}
	if q.Probe != nil {
		s.Changed = a.Probe.Changed
		s.Kind = kindOf(a.Probe.Mode)
		s.Rdev = Dev{Major: a.Probe.Major, Minor: a.Probe.Minor}
		s.UUID, s.SourceGone = a.Probe.UUID, a.Probe.SourceGone
		s.Answer = Answer{Asked: !s.Changed, Op: a.Probe.Op, Errno: a.Probe.Errno, Elapsed: a.Probe.Elapsed}
	}
	return s
}

// probeOf asks for a touch of the mount's superblock. With a block device below
// it, one block of that is read too: a filesystem answers from memory.
func (n *Node) probeOf(m Mount) *touch.ProbeQuery {
	q := &touch.ProbeQuery{Path: m.Path, Want: ref(m), UUID: m.onDevice(), Source: m.deviceSource()}
	if m.Dev.Major == 0 {
		return q // btrfs: one of several devices may fail, and it goes on
	}
	if name := n.cfg.Sysfs.Name(m.Dev); name != "" {
		q.Device, q.DeviceMajor, q.DeviceMinor = "/dev/"+name, m.Dev.Major, m.Dev.Minor
	}
	return q
}

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
