package loop

import (
	"testing"

	"github.com/csi-addons/node-healer/pkg/host"
)

// What is new has events to be followed, also when it got the number of what was there
// before between two looks.
func TestMountsOfANewSuperblock(t *testing.T) {
	fuse, other := host.Dev{Minor: 41}, host.Dev{Minor: 42}
	at := func(path string, id uint64, dev host.Dev) host.Mount {
		return host.Mount{Path: path, ID: id, Dev: dev}
	}
	vs := newVolumes()
	vs.byPath = map[string]*volume{"/a": {}, "/b": {}}
	for _, look := range []struct {
		what    string
		mounts  []host.Mount
		changed int
		unknown bool
	}{
		{"mounted", []host.Mount{at("/a", 1, fuse)}, 1, true},
		{"the same", []host.Mount{at("/a", 1, fuse)}, 0, false},
		{"bound", []host.Mount{at("/a", 1, fuse), at("/b", 2, fuse)}, 1, false},
		{"unbound where it was first", []host.Mount{at("/b", 2, fuse)}, 1, false},
		{"unmounted, and another one mounted", []host.Mount{at("/b", 3, fuse)}, 1, true},
		{"one more", []host.Mount{at("/b", 3, fuse), at("/a", 4, other)}, 1, true},
		{"none", nil, 2, false},
	} {
		if changed, unknown := vs.mountsAre(look.mounts); len(changed) != look.changed || unknown != look.unknown {
			t.Errorf("%s: %d changed, unknown: %t", look.what, len(changed), unknown)
		}
	}
}
