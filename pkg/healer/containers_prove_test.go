package healer

import (
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/pkg/host"
)

// A device number is used again: there has to be a witness.
func TestProve(t *testing.T) {
	seen := FormerSuperblock{Dev: formerly, BootID: "boot-1", Mounts: []FormerMount{{ID: 700, Namespace: 5000, Path: "/data"}}}
	none := func(*observation) {}
	for name, tc := range map[string]struct {
		dev    host.Dev
		change func(*observation)
		mount  func(*host.ContainerMount)
		others []host.ContainerMount
		proof  string // a part of it; else of the doubt
		doubt  string
	}{
		"ours":                    {dev: renewed, change: none, proof: "interrupted replacement"},
		"the host has it":         {dev: formerly, change: onHost(Published, podA), proof: "at " + podA},
		"the host has it beneath": {dev: formerly, change: func(o *observation) { o.c.Places[0].Stack = append(o.c.Places[0].Stack, host.Mount{Dev: formerly}) }, proof: "at " + podA},
		"another container has it": {dev: formerly, change: func(o *observation) {
			o.c.Places = append(o.c.Places, insideOf(9, formerly, "proven"))
			o.c.Record.Places = nil
		}, doubt: "nothing ties"},
		"recorded":       {dev: formerly, change: none, proof: "it was there when"},
		"no record":      {dev: formerly, change: func(o *observation) { o.c.Record = nil }, doubt: "not seen healthy in this boot"},
		"another boot":   {dev: formerly, change: func(o *observation) { o.c.BootID = "next" }, doubt: "not seen healthy in this boot"},
		"never recorded": {dev: formerly, change: func(o *observation) { o.c.Record.Places = nil }, doubt: "nothing ties"},
		"seen before":    {dev: formerly, change: func(o *observation) { o.c.Record.Places, o.c.Record.Former = nil, []FormerSuperblock{seen} }, proof: "replaced on the host"},
		"seen before in another container": {
			dev: formerly, change: func(o *observation) { o.c.Record.Places, o.c.Record.Former = nil, []FormerSuperblock{seen} },
			mount: func(m *host.ContainerMount) { m.Mount.ID = 799 }, others: []host.ContainerMount{inContainer(0, "uid-a", formerly)}, proof: "replaced on the host",
		},
		"seen before, and its id is another's": {
			dev: formerly, change: func(o *observation) { o.c.Record.Places, o.c.Record.Former = nil, []FormerSuperblock{seen} },
			mount: func(m *host.ContainerMount) { m.Mount.ID = 799 }, others: []host.ContainerMount{inContainer(0, "uid-a", renewed)}, doubt: "nothing ties",
		},
		"none of it was seen": {
			dev: formerly, change: func(o *observation) {
				o.c.Record.Places, o.c.Record.Former = nil, []FormerSuperblock{{Dev: formerly, BootID: "boot-1"}}
			}, doubt: "nothing ties",
		},
		"there before it was replaced": {dev: formerly, change: func(o *observation) {
			o.c.Record.Places, o.c.Record.Former = nil, []FormerSuperblock{{Dev: formerly, BootID: "boot-1", Newest: 700}}
		}, proof: "it was there when"},
		"mounted after it was replaced": {dev: formerly, change: func(o *observation) {
			o.c.Record.Places, o.c.Record.Former = nil, []FormerSuperblock{{Dev: formerly, BootID: "boot-1", Newest: 699}}
		}, doubt: "nothing ties"},
		"there before, without unique ids": {dev: formerly, change: func(o *observation) {
			o.c.Record.Places, o.c.Record.Former = nil, []FormerSuperblock{{Dev: formerly, BootID: "boot-1", Newest: 700}}
		}, mount: func(m *host.ContainerMount) { m.Mount.ID = 0 }, doubt: "nothing ties"},
		"seen before of another number": {dev: formerly, change: func(o *observation) {
			other := seen
			other.Dev.Minor = 51
			o.c.Record.Places, o.c.Record.Former = nil, []FormerSuperblock{other}
		}, doubt: "nothing ties"},
		"without unique ids": {
			dev: formerly, change: func(o *observation) {
				o.c.Record.Places, o.c.Record.Former = nil, []FormerSuperblock{{Dev: formerly, BootID: "boot-1", Mounts: []FormerMount{{}}}}
			},
			mount: func(m *host.ContainerMount) { m.Mount.ID = 0 }, doubt: "nothing ties",
		},
		"recorded, and mounted later": {dev: formerly, change: func(o *observation) { o.c.Record.Newest = 699 }, doubt: "mounted after"},
		"recorded, and healthy since": {dev: formerly, change: func(o *observation) {
			o.c.Record.Newest = 699
			o.engine.looked.healthy(volumeKey(o.c.Driver, o.c.Volume.ID), host.SinceBoot(), 700)
		}, proof: "it was there when"},
		"recorded, another healthy since": {dev: formerly, change: func(o *observation) {
			o.c.Record.Newest = 699
			o.engine.looked.healthy(volumeKey(o.c.Driver, "other"), host.SinceBoot(), 700)
		}, doubt: "mounted after"},
		"recorded, as the last of all":    {dev: formerly, change: func(o *observation) { o.c.Record.Newest = 700 }, proof: "it was there when"},
		"recorded, without unique ids":    {dev: formerly, change: none, mount: func(m *host.ContainerMount) { m.Mount.ID = 0 }, doubt: "mounted after"},
		"recorded, outside of pods":       {dev: formerly, change: none, mount: func(m *host.ContainerMount) { m.PodUID = "" }, proof: "it was there when"},
		"of another boot, but seen since": {dev: formerly, change: func(o *observation) { o.c.Record.BootID, o.c.Record.Former = "boot-0", []FormerSuperblock{seen} }, proof: "replaced on the host"},
		"seen before, in another boot": {dev: formerly, change: func(o *observation) {
			other := seen
			other.BootID = "boot-0"
			o.c.Record.Places, o.c.Record.Former = nil, []FormerSuperblock{other}
		}, doubt: "nothing ties"},
	} {
		own := host.Mount{ID: 102, OldID: 102, OldParent: 1, Path: podA, Root: "/", Dev: renewed, FSType: fuseType, Source: fuseSource}
		o := &observation{engine: &Engine{}, node: newWorld(t), table: host.NewTable([]host.Mount{own}), c: Case{
			BootID: "boot-1", Places: []Place{{Role: Published, Path: podA, Proven: true, Stack: []host.Mount{own}}},
			Record: &Record{BootID: "boot-1", Newest: 800, Places: []PlaceRecord{{Path: podA, Dev: formerly}}},
		}}
		tc.change(o)
		m := inContainer(0, "uid-a", tc.dev)
		if tc.mount != nil {
			tc.mount(&m)
		}
		proof, doubt := o.prove(m, append(tc.others, m), own)
		if !strings.Contains(proof, tc.proof) || !strings.Contains(doubt, tc.doubt) || (proof == "") != (tc.proof == "") || (doubt == "") != (tc.doubt == "") {
			t.Errorf("%s: proof %q, doubt %q", name, proof, doubt)
		}
	}
}

func onHost(role Role, path string) func(*observation) {
	return func(o *observation) {
		o.c.Places = append([]Place{{Role: role, Path: path, Proven: true, Stack: []host.Mount{{Dev: formerly}}}}, o.c.Places...)
	}
}

// unproven is a place that only the caller calls the volume's.
func unproven(p Place) Place {
	p.Proven = false
	return p
}

// What is staged is the volume's own; what is published may be older.
func TestWhatAContainerShouldHave(t *testing.T) {
	interimOn := func(p Place) Place { p.Stack[0].Attr = interim; return p }
	sbs := map[host.Dev]host.Superblock{dev(1): answered, dev(2): answered, dev(3): disconn}
	for name, tc := range map[string]struct {
		places []Place
		want   host.Dev
	}{
		"what is staged":                  {[]Place{on(Published, podA, dev(1)), on(Staged, staging, dev(2))}, dev(2)},
		"published, nothing is staged":    {[]Place{on(Published, podA, dev(1))}, dev(1)},
		"published, staging is bare":      {[]Place{on(Published, podA, dev(1)), on(Staged, staging)}, dev(1)},
		"published, what is staged ended": {[]Place{on(Published, podA, dev(1)), on(Staged, staging, dev(3))}, dev(1)},
		"another, the first one ended":    {[]Place{on(Published, podA, dev(3)), on(Published, podB, dev(1))}, dev(1)},
		"not an interim one":              {[]Place{interimOn(on(Published, podA, dev(1))), on(Published, podB, dev(2))}, dev(2)},
		"nothing that works":              {[]Place{on(Published, podA, dev(3)), on(Staged, staging, dev(4))}, host.Dev{}},
		"what nothing proves to be its":   {[]Place{unproven(on(Published, podA, dev(1))), on(Published, podB, dev(2))}, dev(2)},
		"nothing":                         {nil, host.Dev{}},
	} {
		got, found := Case{Places: tc.places, Superblocks: sbs}.working()
		if got.Dev != tc.want || found == tc.want.Zero() {
			t.Errorf("%s: %v, %s", name, found, got.Dev)
		}
	}
}

func TestIsFUSE(t *testing.T) {
	for fsType, want := range map[string]bool{"fuse": true, "fuseblk": true, "fuse.s3fs": true, "fuse.": false, "fusectl": false, "nfs4": false, "": false} {
		if IsFUSE(fsType) != want {
			t.Errorf("%q: %v", fsType, !want)
		}
	}
}
