package engine

import (
	"context"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/internal/node"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/facts/layout"
)

// fakeNode is a host in memory: mounts, files, devices and running pods.
type fakeNode struct {
	mu          sync.Mutex
	t           *testing.T
	mounts      []facts.Mount
	files       map[string]facts.PathInfo
	answers     map[facts.Dev]node.Inspection
	devices     map[facts.Dev]facts.BlockDevice
	pods        map[string]facts.Dev       // what a running container of the pod has mounted
	cut         error                      // why no walk shows that a pod has nothing mounted
	own         map[string]node.Inspection // by the path of the mount, before what its superblock answers
	looks       int
	writes      []string // where a write was tried
	wrote       facts.Write
	synced      facts.Write
	syncs       []string
	lookup      facts.Lookup
	lookedUp    int
	writeErr    error
	errors      *facts.FilesystemErrors
	stale       []facts.Mount // what Topology still shows; nil: what is there
	containers  []facts.ContainerMount
	inContainer map[string]facts.ContainerProbe // by path; the zero value answers
	insideErr   error                           // what a probe in a container returns
	unverified  []facts.Unverified
	running     []facts.Container
	walks       [][]string // whose containers were looked for
	before      []bool     // whether those of InContainers may be known from an earlier walk
	walkErr     error
	onMounts    func()                        // runs before each reading of the table, with the lock held
	onLook      func(node.InspectQuery) error // runs before each look, without it
}

// newFakeNode has one ext4 volume, staged and published to pod a.
func newFakeNode(t *testing.T) *fakeNode {
	w := &fakeNode{
		t:       t,
		mounts:  []facts.Mount{{ID: 1, OldID: 1, Path: "/", Root: "/", Dev: facts.Dev{Major: 254}, FSType: "ext4", Source: "/dev/vda"}},
		files:   map[string]facts.PathInfo{},
		answers: map[facts.Dev]node.Inspection{disk: {Kind: facts.KindDirectory, ProbeFacts: facts.ProbeFacts{UUID: "uuid-1"}, Answer: facts.Answer{Asked: true}}},
		devices: map[facts.Dev]facts.BlockDevice{disk: {
			Dev: disk, Name: "sdb", DiskSeq: 5, Identity: facts.Identity{Serial: "serial-1", WWID: "wwid-1", Size: 1 << 30},
		}},
		pods:  map[string]facts.Dev{},
		wrote: facts.Write{Answer: facts.Answer{Asked: true}},
	}
	w.publish(staging)
	w.publish(podA)
	return w
}

// publish mounts the volume at a path of kubelet's, with its vol_data.json.
func (w *fakeNode) publish(path string) {
	w.mount(path, disk)
	w.files[path] = directory(volID)
}

func (w *fakeNode) mount(path string, dev facts.Dev) {
	id := len(w.mounts) + 100
	w.mounts = append(w.mounts, facts.Mount{
		ID: uint64(id), OldID: id, OldParent: 1, Dev: dev, Root: "/", Path: path, FSType: "ext4", Source: "/dev/sdb",
	})
}

func (w *fakeNode) unmount(path string) {
	w.mounts = slices.DeleteFunc(w.mounts, func(m facts.Mount) bool { return m.Path == path })
}

// change alters a mount.
func (w *fakeNode) change(path string, f func(*facts.Mount)) {
	for i := range w.mounts {
		if w.mounts[i].Path == path {
			f(&w.mounts[i])
		}
	}
}

// directory is a directory with a vol_data.json that names a volume; none if
// empty.
func directory(handle string) facts.PathInfo {
	l := facts.PathInfo{Inspected: true, Kind: facts.KindDirectory}
	if handle != "" {
		l.VolData = &facts.VolData{DriverName: driver, VolumeHandle: handle}
	}
	return l
}

func (w *fakeNode) Mounts() (node.Table, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.onMounts != nil {
		w.onMounts()
	}
	return node.NewTable(slices.Clone(w.mounts)), nil
}

func (w *fakeNode) Topology() (node.Table, error) {
	w.mu.Lock()
	stale := w.stale
	w.mu.Unlock()
	if stale != nil {
		return node.NewTable(slices.Clone(stale)), nil
	}
	return w.Mounts()
}

func (w *fakeNode) Refresh(stack []facts.Mount) ([]facts.Mount, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var fresh []facts.Mount
	for _, m := range stack {
		at := slices.IndexFunc(w.mounts, func(now facts.Mount) bool { return now.Same(m) })
		if at < 0 || w.mounts[at].Path != m.Path {
			w.stale = nil
			return nil, false
		}
		fresh = append(fresh, w.mounts[at])
	}
	return fresh, true
}

func (w *fakeNode) Inspect(_ context.Context, q node.InspectQuery) (node.Inspection, error) {
	if w.onLook != nil {
		if err := w.onLook(q); err != nil {
			return node.Inspection{}, err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.looks++
	var s node.Inspection
	if q.Probe != nil {
		if s = w.answers[q.Probe.Dev]; w.own[q.Probe.Path].Answer.Asked {
			s = w.own[q.Probe.Path]
		}
		if s.Kind == facts.KindNone && !s.Changed && !s.Answer.Asked {
			s.Kind, s.Answer.Asked = facts.KindDirectory, true
		}
		if l := w.files[q.Probe.Path]; l.Kind == facts.KindFile || l.Kind == facts.KindBlock {
			s.Kind, s.Rdev = l.Kind, l.Rdev
		}
	}
	if q.Probe != nil {
		for _, m := range w.mounts {
			s.Newest = max(s.Newest, m.ID)
		}
	}
	s.Paths = map[string]facts.PathInfo{}
	for _, p := range q.Paths {
		l, known := w.files[p.Path]
		if !known {
			l = facts.PathInfo{PathFacts: facts.PathFacts{Errno: syscall.ENOENT}}
		}
		l.Inspected = true
		if p.Mounted {
			l = facts.PathInfo{Inspected: true, VolData: l.VolData}
		}
		s.Paths[p.Path] = l
	}
	return s, nil
}

func (w *fakeNode) LookUp(context.Context, facts.Mount) (facts.Lookup, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lookedUp++
	return w.lookup, nil
}

func (w *fakeNode) TryWrite(_ context.Context, m facts.Mount, onlySync bool) (facts.Write, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if onlySync {
		w.syncs = append(w.syncs, m.Path)
		return w.synced, w.writeErr
	}
	w.writes = append(w.writes, m.Path)
	return w.wrote, w.writeErr
}

func (w *fakeNode) FilesystemErrors(string, string) *facts.FilesystemErrors { return w.errors }
func (w *fakeNode) BootTime() time.Time                                     { return time.Unix(1e9, 0) }

func (w *fakeNode) BlockDevice(dev facts.Dev) facts.BlockDevice {
	if d, known := w.devices[dev]; known {
		return d
	}
	return facts.BlockDevice{Dev: dev, Missing: true}
}

func (w *fakeNode) Holder(_ context.Context, podUID string, dev facts.Dev) (*node.Holder, error) {
	if held, runs := w.pods[podUID]; !runs || held != dev {
		if w.cut != nil {
			return nil, w.cut
		}
		return nil, nil //nolint:nilnil // as documented
	}
	return node.Hold(os.Getpid()), nil
}

func (w *fakeNode) HolderAt(ctx context.Context, m facts.ContainerMount) *node.Holder {
	h, _ := w.Holder(ctx, m.PodUID, m.Mount.Dev)
	return h
}

func (w *fakeNode) InContainers(_ context.Context, pods []string, q facts.Filter, before bool) (node.Containers, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var found node.Containers
	for _, u := range w.unverified {
		if pods == nil || slices.Contains(pods, u.PodUID) || u.Why == facts.WhyScanCut {
			found.Unverified = append(found.Unverified, u)
		}
	}
	w.walks, w.before = append(w.walks, pods), append(w.before, before)
	for _, m := range w.containers {
		if q.Wants(m.Mount) && (pods == nil || slices.Contains(pods, m.PodUID)) {
			found.Mounts = append(found.Mounts, m)
		}
	}
	return found, w.walkErr
}

func (w *fakeNode) InPods(context.Context) ([]facts.Container, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.walks = append(w.walks, nil)
	return w.running, w.walkErr
}

func (w *fakeNode) ProbeInContainers(_ context.Context, mounts []facts.ContainerMount) ([]facts.ContainerProbe, error) {
	sights := make([]facts.ContainerProbe, len(mounts))
	for i, m := range mounts {
		sights[i] = w.inContainer[m.Path()]
	}
	return sights, w.insideErr
}

func (w *fakeNode) Kubelet() layout.Kubelet { return kubelet }
func (w *fakeNode) BootID() string          { return "boot-1" }

// RealPath knows one root behind a link.
func (w *fakeNode) RealPath(p string) string {
	if rest, linked := strings.CutPrefix(p, "/link/"); linked {
		return "/k/" + rest
	}
	return p
}
