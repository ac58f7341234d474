package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/faultfs"
)

// stuckWorkers are those of a server that wait and cannot be ended.
func stuckWorkers(n *harness.Node) []int {
	return slices.DeleteFunc(n.Workers(), func(pid int) bool { return harness.WaitingThreads(pid) == 0 })
}

// TestStuckBeneath has a filesystem beneath the topmost mount that never answers:
// asked for again and again, that costs one process at most. What is beneath a
// live mount is reported, and stays.
func TestStuckBeneath(t *testing.T) {
	for _, live := range []bool{true, false} {
		t.Run(fmt.Sprintf("the upper one lives: %v", live), func(t *testing.T) {
			n := harness.NewNode(t, "--standalone", "--probe-timeout=3s", "--slow-answer=3s").Start()
			next := newNeighbour(n)
			v, below := n.NewFUSEVolume("stuck", faultfs.Config{})
			n.Expect("healthy", v.Request())
			below.Hang()
			above := faultfs.Mount(t, v.Staging, faultfs.Config{})
			if !live {
				above.Kill()
			}
			before, ids := n.Table(), idsAt(t, v.Staging, v.MountPoint())
			for range 10 {
				message := says(n, "abnormal", v)
				if live {
					if !strings.Contains(message, "StackedMounts") || !strings.Contains(message, "To do: ") || strings.Contains(message, "unmount-duplicate-beneath") {
						t.Errorf("the layer beneath is not only reported: %q", message)
					}
					n.SameTable(before)
				}
				next.untouched()
			}
			if live {
				if got := idsAt(t, v.Staging, v.MountPoint()); fmt.Sprint(got) != fmt.Sprint(ids) {
					t.Errorf("the mounts %v became %v", ids, got)
				}
			}
			harness.Eventually(t, "no second worker waits and cannot be ended", func() bool { return len(stuckWorkers(n)) <= 1 })
			n.Stop()
		})
	}
}
