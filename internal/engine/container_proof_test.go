package engine

import (
	"cmp"
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/internal/node"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// onlyPrevious is a record that knows nothing but one superblock, as replaced in a boot.
func onlyPrevious(dev facts.Dev, boot string, newest uint64) func(*observation) {
	return func(o *observation) {
		o.c.Record.MountPoints, o.c.Record.Previous = nil, []healer.PreviousSuperblock{{Dev: dev, BootID: boot, Newest: newest}}
	}
}

var proofCases = map[string]struct {
	dev      facts.Dev // of the container's mount; none: previously
	change   func(*observation)
	mount    func(*facts.ContainerMount)
	proof    string // a part of it; else of why not
	unproven string
}{
	"ours":            {dev: renewed, proof: "interrupted replacement"},
	"the host has it": {change: seenOnHost(healer.RoleTarget, podA), proof: "at " + podA},
	"the host has it beneath": {
		change: func(o *observation) {
			o.c.MountPoints[0].Stack = append(o.c.MountPoints[0].Stack, facts.Mount{Dev: previously})
		},
		proof: "at " + podA,
	},
	"another container has it": {
		change: func(o *observation) {
			o.c.MountPoints = append(o.c.MountPoints, containerMountPoint(9, previously, "proven"))
			o.c.Record.MountPoints = nil
		},
		unproven: "nothing ties",
	},
	"recorded, and the host has it for another volume": {
		change: func(o *observation) {
			other := facts.Mount{ID: 103, OldID: 103, OldParent: 1, Path: kubelet.Staging(driver, "other"), Root: "/", Dev: previously, FSType: fuseType, Source: fuseSource}
			o.table = node.NewTable(append(o.table.Mounts(), other))
		},
		unproven: "which is not this volume's",
	},
	"recorded as gone before it": {change: func(o *observation) { o.c.Record.MountPoints[0].Newest = 699 }, unproven: "mounted after"},
	"recorded as gone after it":  {change: func(o *observation) { o.c.Record.MountPoints[0].Newest = 700 }, proof: "it was there when"},
	"recorded":                   {proof: "it was there when"},
	"no record":                  {change: func(o *observation) { o.c.Record = nil }, unproven: "not seen healthy in this boot"},
	"another boot":               {change: func(o *observation) { o.c.BootID = "next" }, unproven: "not seen healthy in this boot"},
	"never recorded":             {change: func(o *observation) { o.c.Record.MountPoints = nil }, unproven: "nothing ties"},
	"of a previous number, and nothing more": {
		change: func(o *observation) {
			seen := []healer.PreviousMount{{ID: 700, Namespace: 5000, Path: "/data"}}
			o.c.Record.MountPoints, o.c.Record.Previous = nil, []healer.PreviousSuperblock{{Dev: previously, BootID: "boot-1", Mounts: seen}}
		},
		unproven: "nothing ties",
	},
	"there before it was replaced":  {change: onlyPrevious(previously, "boot-1", 700), proof: "it was there when"},
	"mounted after it was replaced": {change: onlyPrevious(previously, "boot-1", 699), unproven: "nothing ties"},
	"there before, without unique ids": {
		change:   onlyPrevious(previously, "boot-1", 700),
		mount:    func(m *facts.ContainerMount) { m.Mount.ID = 0 },
		unproven: "nothing ties",
	},
	"there before, of another number": {
		change:   onlyPrevious(facts.Dev{Minor: previously.Minor + 1}, "boot-1", 700),
		unproven: "nothing ties",
	},
	"recorded, and mounted later":  {change: func(o *observation) { o.c.Record.Newest = 699 }, unproven: "mounted after"},
	"recorded, as the last of all": {change: func(o *observation) { o.c.Record.Newest = 700 }, proof: "it was there when"},
	"recorded, without unique ids": {mount: func(m *facts.ContainerMount) { m.Mount.ID = 0 }, unproven: "mounted after"},
	"recorded, outside of pods":    {mount: func(m *facts.ContainerMount) { m.PodUID = "" }, proof: "it was there when"},
	"of another boot, but seen since": {
		change: func(o *observation) {
			o.c.Record.BootID, o.c.Record.Previous = "boot-0", []healer.PreviousSuperblock{{Dev: previously, BootID: "boot-1", Newest: 700}}
		},
		proof: "it was there when",
	},
	"there before, in another boot": {change: onlyPrevious(previously, "boot-0", 700), unproven: "nothing ties"},
}

// A device number is given out again, so it proves nothing alone.
func TestProve(t *testing.T) {
	for name, tc := range proofCases {
		own := facts.Mount{ID: 102, OldID: 102, OldParent: 1, Path: podA, Root: "/", Dev: renewed, FSType: fuseType, Source: fuseSource}
		o := &observation{engine: &Engine{scanned: newScannedVolumes()}, node: newFakeNode(t), table: node.NewTable([]facts.Mount{own}), c: healer.Case{
			BootID: "boot-1", MountPoints: []healer.MountPoint{{Role: healer.RoleTarget, Path: podA, Proven: true, Stack: []facts.Mount{own}}},
			Record: &healer.Record{BootID: "boot-1", Newest: 800, MountPoints: []healer.MountPointRecord{{Path: podA, Dev: previously}}},
		}}
		if tc.change != nil {
			tc.change(o)
		}
		m := containerMountOf(0, "uid-a", cmp.Or(tc.dev, previously))
		if tc.mount != nil {
			tc.mount(&m)
		}
		proof, unproven := o.prove(m, containerScan{now: own, mounts: []facts.ContainerMount{m}, pods: o.c.Pods()})
		if !strings.Contains(proof, tc.proof) || !strings.Contains(unproven, tc.unproven) || (proof == "") != (tc.proof == "") || (unproven == "") != (tc.unproven == "") {
			t.Errorf("%s: proof %q, unproven %q", name, proof, unproven)
		}
	}
}

// On NFS what is mounted anew shares the superblock, so its number says nothing, and neither
// does the id of a mount: the directory of the server does, in a pod that has no other
// volume of it.
func TestProveOnNFS(t *testing.T) {
	for name, tc := range map[string]struct {
		change          func(*facts.ContainerMount)
		sharing         bool // the pod has another volume of the same directory
		proof, unproven string
	}{
		"the volume's directory":    {change: func(*facts.ContainerMount) {}, proof: "the directory of the server that the volume had"},
		"another directory":         {change: func(m *facts.ContainerMount) { m.Mount.Source = "srv:/w" }, unproven: "another directory of the server"},
		"another pod":               {change: func(m *facts.ContainerMount) { m.PodUID = "uid-b" }, unproven: "other volumes share"},
		"no pod":                    {change: func(m *facts.ContainerMount) { m.PodUID = "" }, unproven: "other volumes share"},
		"one of two in the pod":     {change: func(*facts.ContainerMount) {}, sharing: true, unproven: "other volumes share"},
		"an interrupted heal's own": {change: func(m *facts.ContainerMount) { m.Mount.Attr |= facts.AttrGuard }, proof: "interrupted replacement"},
	} {
		now := facts.Mount{ID: 102, OldID: 102, Path: podA, Root: "/"}
		toNFS(&now)
		mounts := []facts.Mount{now}
		if tc.sharing {
			other := now
			other.ID, other.OldID, other.Path = 103, 103, strings.ReplaceAll(podA, "pv1", "pv2")
			mounts = append(mounts, other)
		}
		o := &observation{engine: &Engine{scanned: newScannedVolumes()}, node: newFakeNode(t), table: node.NewTable(mounts), c: healer.Case{
			BootID: "boot-1", MountPoints: []healer.MountPoint{{Role: healer.RoleTarget, Path: podA, Proven: true, Stack: []facts.Mount{now}}},
			Record: &healer.Record{BootID: "boot-1", Newest: 800, MountPoints: []healer.MountPointRecord{{Path: podA, Dev: export}}},
		}}
		m := containerMountOf(0, "uid-a", export)
		toNFS(&m.Mount)
		tc.change(&m)
		proof, unproven := o.prove(m, containerScan{now: now, pods: []string{"uid-a"}, sharing: o.sharing(now)})
		if !strings.Contains(proof, tc.proof) || !strings.Contains(unproven, tc.unproven) || (proof == "") != (tc.proof == "") || (unproven == "") != (tc.unproven == "") {
			t.Errorf("%s: proof %q, unproven %q", name, proof, unproven)
		}
	}
}

func seenOnHost(role healer.Role, path string) func(*observation) {
	return func(o *observation) {
		o.c.MountPoints = append([]healer.MountPoint{{Role: role, Path: path, Proven: true, Stack: []facts.Mount{{Dev: previously}}}}, o.c.MountPoints...)
	}
}

// unproven is a mount point that only the caller calls the volume's.
func unproven(p healer.MountPoint) healer.MountPoint {
	p.Proven = false
	return p
}

// What is staged is the volume's own; what is published may be older.
func TestWhatAContainerShouldHave(t *testing.T) {
	placeholderOn := func(p healer.MountPoint) healer.MountPoint { p.Stack[0].Attr = placeholder; return p }
	sbs := map[facts.Dev]healer.Superblock{dev(1): answered, dev(2): answered, dev(3): disconn}
	for name, tc := range map[string]struct {
		mountPoints []healer.MountPoint
		want        facts.Dev
	}{
		"what is staged":                  {[]healer.MountPoint{on(healer.RoleTarget, podA, dev(1)), on(healer.RoleStaging, staging, dev(2))}, dev(2)},
		"published, nothing is staged":    {[]healer.MountPoint{on(healer.RoleTarget, podA, dev(1))}, dev(1)},
		"published, staging is bare":      {[]healer.MountPoint{on(healer.RoleTarget, podA, dev(1)), on(healer.RoleStaging, staging)}, dev(1)},
		"published, what is staged ended": {[]healer.MountPoint{on(healer.RoleTarget, podA, dev(1)), on(healer.RoleStaging, staging, dev(3))}, dev(1)},
		"another, the first one ended":    {[]healer.MountPoint{on(healer.RoleTarget, podA, dev(3)), on(healer.RoleTarget, podB, dev(1))}, dev(1)},
		"not a placeholder one":           {[]healer.MountPoint{placeholderOn(on(healer.RoleTarget, podA, dev(1))), on(healer.RoleTarget, podB, dev(2))}, dev(2)},
		"nothing that works":              {[]healer.MountPoint{on(healer.RoleTarget, podA, dev(3)), on(healer.RoleStaging, staging, dev(4))}, facts.Dev{}},
		"what nothing proves to be its":   {[]healer.MountPoint{unproven(on(healer.RoleTarget, podA, dev(1))), on(healer.RoleTarget, podB, dev(2))}, dev(2)},
		"nothing":                         {nil, facts.Dev{}},
	} {
		got, found := healer.Case{MountPoints: tc.mountPoints, Superblocks: sbs}.Working()
		if got.Dev != tc.want || found == tc.want.Zero() {
			t.Errorf("%s: %v, %s", name, found, got.Dev)
		}
	}
}

func TestIsFUSE(t *testing.T) {
	for fsType, want := range map[string]bool{"fuse": true, "fuseblk": true, "fuse.s3fs": true, "fuse.": false, "fusectl": false, "nfs4": false, "": false} {
		if facts.IsFUSE(fsType) != want {
			t.Errorf("%q: %v", fsType, !want)
		}
	}
}

// What is mounted while one superblock of a volume is asked, and the other was asked before,
// may have the number of the other.
func TestMountsWhileSuperblocksAreAskedProveNothing(t *testing.T) {
	b := newFixture(t)
	b.serve(previously)
	b.change(podA, func(m *facts.Mount) { m.Dev = renewed }) // the driver publishes another one than it stages
	var asked []uint64
	b.onLook = func(q node.InspectQuery) error {
		b.fakeNode.mu.Lock()
		defer b.fakeNode.mu.Unlock()
		if q.Probe != nil {
			id := uint64(1000 * (len(asked) + 1))
			asked = append(asked, id)
			b.answers[q.Probe.Dev] = node.Inspection{Kind: facts.KindDirectory, Answer: facts.Answer{Asked: true}, ProbeFacts: facts.ProbeFacts{Newest: id}}
		}
		return nil
	}
	b.healthy()
	if newest := b.last().Newest; len(asked) != 2 || newest != 1000 {
		t.Errorf("%d after superblocks were asked at %v", newest, asked)
	}
}
