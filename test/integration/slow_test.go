package integration

import (
	"strings"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/faultfs"
)

// TestSlowIsNotDead leaves a volume alone that answers everything late, and heals its
// lost bind like any other's.
func TestSlowIsNotDead(t *testing.T) {
	for name, lay := range map[string]func(n *harness.Node) (*harness.Volume, *faultfs.FS){
		"a FUSE daemon": func(n *harness.Node) (*harness.Volume, *faultfs.FS) { return n.NewFUSEVolume("slow", faultfs.Config{}) },
		"the disk":      func(n *harness.Node) (*harness.Volume, *faultfs.FS) { return n.NewVolumeOnFaults("ext4", "slow") },
	} {
		t.Run(name, func(t *testing.T) {
			n := harness.NewNode(t, "--standalone", "--slow-answer=250ms", "--probe-timeout=1m").Start()
			next := newNeighbour(n)
			v, fs := lay(n)
			n.Expect("healthy", v.Request())
			before := n.Table()
			fs.Delay(harness.Slowly(300 * time.Millisecond))
			soon(n, "abnormal", v.Request())
			for range 3 {
				n.Expect("abnormal", v.Request(), "SlowResponse", "Nothing was changed")
			}
			n.SameTable(before)
			next.untouched()
			v.Unpublish()
			if a, err := n.Call(v.Request()); err != nil || !strings.Contains(a.GetMessage(), "Done: rebind of") {
				t.Errorf("got %v %v", a, err)
			}
			n.SameTable(before)
			fs.Lift()
			soon(n, "healthy", v.Request())
			next.untouched()
		})
	}
}
