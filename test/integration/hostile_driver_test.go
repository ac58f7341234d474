package integration

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/csidriver"
)

// hostileModes are drivers that do not answer as they should, with what the log says of
// them.
func hostileModes() map[string]struct {
	mode csidriver.Mode
	says string
} {
	type hostile = struct {
		mode csidriver.Mode
		says string
	}
	answers := func(method string, a csidriver.Answer) csidriver.Mode {
		return csidriver.Mode{Heal: csidriver.OnlySays, Answers: map[string]csidriver.Answer{method: a}}
	}
	modes := map[string]hostile{
		"silent":              {csidriver.Mode{Connection: csidriver.Silent}, "DEADLINE_EXCEEDED"},
		"garbage":             {csidriver.Mode{Connection: csidriver.Garbage}, "UNAVAILABLE"},
		"closes":              {csidriver.Mode{Connection: csidriver.Closes}, "UNAVAILABLE"},
		"half-closes":         {csidriver.Mode{Connection: csidriver.HalfCloses}, "UNAVAILABLE"},
		"half a frame":        {csidriver.Mode{Connection: csidriver.HalfFrame}, "DEADLINE_EXCEEDED"},
		"wrong name":          {csidriver.Mode{Name: "other.example.com"}, "it names itself other.example.com"},
		"hangs at its name":   {answers("GetPluginInfo", csidriver.Answer{Hangs: true}), "GetPluginInfo: DEADLINE_EXCEEDED"},
		"hangs at the volume": {answers("NodeGetVolumeHealth", csidriver.Answer{Hangs: true}), "NodeGetVolumeHealth: DEADLINE_EXCEEDED"},
		"huge":                {answers("NodeGetVolumeHealth", csidriver.Answer{Code: codes.Internal, Huge: 3 << 20}), "NodeGetVolumeHealth: "},
	}
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		if code != codes.Unimplemented { // then the older way is asked
			modes[fmt.Sprint("answers ", code)] = hostile{answers("NodeGetVolumeHealth", csidriver.Answer{Code: code, Text: "no"}), "NodeGetVolumeHealth: "}
		}
	}
	return modes
}

// TestHostileDriver has a driver's process misbehave in each way: the volume is healthy
// all the same, its lost target comes back, and nothing that the driver says counts.
func TestHostileDriver(t *testing.T) {
	n := harness.NewNode(t, "--standalone", "--probe-timeout=6s", "-v=4")
	v := n.NewVolume("ext4", "of a hostile driver")
	d := n.NewCSIDriver(csidriver.Mode{})
	before := n.Table()
	for name, tc := range hostileModes() {
		t.Run(name, func(t *testing.T) {
			d.Behave(tc.mode)
			n.Start() // another server: it remembers nothing of the driver
			logged := len(n.Log.String())
			n.Expect("healthy", v.Request())
			v.Unpublish()
			n.Expect("healed", v.Request(), "rebind of the target")
			n.SameTable(before)
			n.Expect("healthy", v.Request())
			n.Stop()
			log := n.Log.String()[logged:]
			if !strings.Contains(log, tc.says) {
				t.Errorf("the log lacks %q:\n%s", tc.says, log)
			}
			if strings.Contains(log, harness.Canary) {
				t.Error("the log has a secret")
			}
		})
	}
}
