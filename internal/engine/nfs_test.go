package engine

import (
	"slices"
	"syscall"
	"testing"

	"github.com/csi-addons/node-healer/internal/node"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// export is the superblock of an NFS export.
var export = facts.Dev{Minor: 44}

var (
	staleSight = node.Inspection{Answer: facts.Answer{Asked: true, Op: "statx", Errno: syscall.ESTALE}}
	goodSight  = node.Inspection{Kind: facts.KindDirectory, Answer: facts.Answer{Asked: true}}
)

func toNFS(m *facts.Mount) { m.Dev, m.FSType, m.Source = export, "nfs4", "srv:/v" }

// newNFSBench has an NFS volume that was seen healthy.
func newNFSBench(t *testing.T) *fixture {
	t.Helper()
	b := newFixture(t)
	for _, p := range []string{staging, podA} {
		b.change(p, toNFS)
	}
	b.answers[export], b.own = goodSight, map[string]node.Inspection{}
	b.healthy()
	b.heal(volume)
	b.walks, b.looks = nil, 0
	return b
}

// Each mount of NFS has an answer of its own.
func TestEachMountOfNFSIsAsked(t *testing.T) {
	for name, tc := range map[string]struct {
		own    map[string]node.Inspection
		stale  map[string]bool
		answer syscall.Errno // of the superblock
	}{
		"well":          {nil, nil, 0},
		"one is stale":  {map[string]node.Inspection{podA: staleSight}, map[string]bool{podA: true}, 0},
		"the staged is": {map[string]node.Inspection{staging: staleSight}, map[string]bool{staging: true}, 0},
		"all are":       {map[string]node.Inspection{staging: staleSight, podA: staleSight}, map[string]bool{staging: true, podA: true}, syscall.ESTALE},
	} {
		t.Run(name, func(t *testing.T) {
			b := newNFSBench(t)
			b.own = tc.own
			b.heal(volume)
			c := b.last()
			if b.looks != 2 {
				t.Errorf("%d looks at two mounts", b.looks)
			}
			for _, p := range c.MountPoints {
				if sb := c.Superblock(p); p.Stale() != tc.stale[p.Path] || p.Stale() != (sb.Answer.Errno == syscall.ESTALE) {
					t.Errorf("%s: stale: %v, %+v", p.Path, p.Stale(), sb.Answer)
				}
			}
			if got := c.Superblocks[export].Answer.Errno; got != tc.answer {
				t.Errorf("the superblock answers %v", got)
			}
		})
	}
}

// A superblock that gave no answer is not asked through its other mounts.
func TestHungNFSIsNotAskedAgain(t *testing.T) {
	b := newNFSBench(t)
	const podB = "/k/pods/uid-b/volumes/kubernetes.io~csi/pv1/mount"
	b.publish(podB)
	b.change(podB, toNFS)
	b.answers[export] = node.Inspection{Answer: facts.Answer{Asked: true, TimedOut: true}}
	var asked []string
	b.onLook = func(q node.InspectQuery) error {
		b.fakeNode.mu.Lock()
		defer b.fakeNode.mu.Unlock()
		if q.Probe != nil {
			asked = append(asked, q.Probe.Path)
		}
		return nil
	}
	b.heal(volume)
	if slices.Contains(asked, podB) {
		t.Errorf("asked at %q", asked)
	}
	for _, p := range b.last().MountPoints {
		if !b.last().Superblock(p).Answer.TimedOut {
			t.Errorf("%s: %+v", p.Path, b.last().Superblock(p))
		}
	}
}

// What a container has of the superblock is looked for when a mount point is stale, and
// until no container is.
func TestStaleNFSInContainers(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*facts.ContainerMount)
		spoil  func(*fixture)
		sight  facts.ContainerProbe
		found  bool
		proven bool
	}{
		"stale":                {sight: facts.ContainerProbe{Errno: syscall.ESTALE}, found: true, proven: true},
		"good":                 {},
		"another error":        {sight: facts.ContainerProbe{Errno: syscall.EIO}},
		"another directory":    {sight: facts.ContainerProbe{Errno: syscall.ESTALE}, change: func(m *facts.ContainerMount) { m.Mount.Source = "srv:/w" }},
		"in another pod":       {sight: facts.ContainerProbe{Errno: syscall.ESTALE}, change: func(m *facts.ContainerMount) { m.PodUID = "uid-z" }},
		"of one of two alike":  {sight: facts.ContainerProbe{Errno: syscall.ESTALE}, spoil: another("uid-a", toNFS), found: true},
		"the pod has one more": {sight: facts.ContainerProbe{Errno: syscall.ESTALE}, spoil: another("uid-a", func(m *facts.Mount) { toNFS(m); m.Source = "srv:/w" }), found: true, proven: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newNFSBench(t)
			b.own[podA] = staleSight
			if tc.spoil != nil {
				tc.spoil(b)
			}
			m := b.run("uid-a", export, func(m *facts.ContainerMount) {
				toNFS(&m.Mount)
				if tc.change != nil {
					tc.change(m)
				}
			})
			b.inContainer[m.Path()] = tc.sight
			see := func() {
				t.Helper()
				got := b.inContainers()
				if len(got) == 1 != tc.found {
					t.Fatalf("%+v", got)
				}
				if tc.found && ((got[0].InContainer.Proof != "") != tc.proven || !got[0].Stale() || got[0].InContainer.Attr.Has(facts.AttrReadOnly)) {
					t.Errorf("%+v", got[0].InContainer)
				}
			}
			b.heal(volume)
			see()
			b.own = nil // the host's mount point was healed
			b.heal(volume)
			see()
			b.inContainer[m.Path()], b.walks, tc.found = facts.ContainerProbe{}, nil, false
			b.heal(volume)
			see()
			b.walks = nil
			if b.heal(volume); len(b.walks) != 0 {
				t.Error("containers are looked for without a reason")
			}
		})
	}
}

// Each mount point keeps the source of its mount: on NFS the root tells nothing.
func TestRecordOfNFS(t *testing.T) {
	b := newNFSBench(t)
	r := b.notes.records[volumeKey(driver, volID)]
	for _, p := range r.MountPoints {
		if p.Source != "srv:/v" {
			t.Errorf("%+v", p)
		}
	}
	if len(r.MountPoints) != 2 || r.Source != "srv:/v" {
		t.Errorf("%+v", r)
	}
}
