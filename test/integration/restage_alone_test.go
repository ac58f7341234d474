package integration

import (
	"testing"

	"github.com/csi-addons/node-healer/test/harness/csidriver"
)

// TestRestageAlone stages the only FUSE volume of a node anew, which a kernel can do that
// does not tell which process serves which connection (below about Linux 6.16).
func TestRestageAlone(t *testing.T) {
	n, d := restaging(t, "unmount-first", csidriver.Mode{Stage: csidriver.DoesNothing})
	v := d.NewVolume("v")
	n.Expect("healthy", d.Request(v))
	sum := v.Sum(v.MountPoint())
	d.KillDaemon(v)
	n.Expect("healed", d.Request(v), "restage of the staging mount point; ")
	if v.Sum(v.MountPoint()) != sum {
		t.Error("the data is another one")
	}
	v.Writable(v.MountPoint())
}
