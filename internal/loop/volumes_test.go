package loop

import (
	"testing"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// What is new has events to be followed, also when it got the number of what was there
// before between two looks.
func TestMountsOfANewSuperblock(t *testing.T) {
	fuse, other := facts.Dev{Minor: 41}, facts.Dev{Minor: 42}
	at := func(path string, id uint64, dev facts.Dev) facts.Mount {
		return facts.Mount{Path: path, ID: id, Dev: dev}
	}
	vs := newVolumes()
	vs.byPath = map[string]*volume{"/a": {}, "/b": {}}
	for _, look := range []struct {
		what    string
		mounts  []facts.Mount
		changed int
		unknown bool
	}{
		{what: "mounted", mounts: []facts.Mount{at("/a", 1, fuse)}, changed: 1, unknown: true},
		{what: "the same", mounts: []facts.Mount{at("/a", 1, fuse)}},
		{what: "bound", mounts: []facts.Mount{at("/a", 1, fuse), at("/b", 2, fuse)}, changed: 1},
		{what: "unbound where it was first", mounts: []facts.Mount{at("/b", 2, fuse)}, changed: 1},
		{what: "unmounted, and another one mounted", mounts: []facts.Mount{at("/b", 3, fuse)}, changed: 1, unknown: true},
		{what: "one more", mounts: []facts.Mount{at("/b", 3, fuse), at("/a", 4, other)}, changed: 1, unknown: true},
		{what: "none", changed: 2},
	} {
		if changed, unknown := vs.syncMounts(look.mounts); len(changed) != look.changed || unknown != look.unknown {
			t.Errorf("%s: %d changed, unknown: %t", look.what, len(changed), unknown)
		}
	}
}
