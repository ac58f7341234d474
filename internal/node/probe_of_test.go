package node

import (
	"testing"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// The files of a CephFS snapshot show a number of their own (ceph_getattr), as those of a btrfs
// subvolume do: no probe compares it with that of the mount.
func TestNumbersThatFilesShowAreCompared(t *testing.T) {
	n, _ := newNode(t)
	dev := facts.Dev{Minor: 50}
	for fsType, want := range map[string]facts.Dev{"nfs4": dev, "fuse.ceph-fuse": dev, "ceph": {}, "btrfs": {}} {
		if got := n.probeOf(facts.Mount{Dev: dev, FSType: fsType, Path: "/a", Root: "/.snap/s"}).Superblock; got != want {
			t.Errorf("%s: %v, want %v", fsType, got, want)
		}
	}
}
