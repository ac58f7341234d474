package integration

import (
	"path/filepath"
	"testing"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
)

// TestVendorsDriverAsksTheAPI: with the gate of a cluster the healer in a driver heals what a pod
// of this node wants, and nothing for a pod that is gone or while nobody can say what is wanted.
func TestVendorsDriverAsksTheAPI(t *testing.T) {
	harness.NewHello(t)
	m := newMember(t, onHost)
	m.Binary = harness.BuildVendor(t, "driver")
	m.Args = append(m.Args, "--csi-socket="+filepath.Join(m.Dir, "csi.sock"))
	m.Start()
	wanted, goes := m.lost("wanted"), m.lost("goes")
	m.Expect("healed", wanted.Request(), "NotMounted", "rebind")
	wanted.Lose()
	cluster.Delete(t, m.api, goes.pod)
	unmounted := m.Table()
	m.Expect("abnormal", goes.Request(), "Refused: rebind")
	m.SameTable(unmounted)
	m.Expect("healed", wanted.Request())
	wanted.Lose()

	api := outages["paused"]
	api.begin(m.api, t)
	wanted.refused()
	m.Expect("abnormal", goes.Request(), "Refused: rebind")
	m.SameTable(unmounted)
	api.end(m.api, t)
	wanted.heals()
	m.Expect("abnormal", goes.Request(), "Refused: rebind")
}
