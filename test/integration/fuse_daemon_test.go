package integration

import (
	"fmt"
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/faultfs"
)

// TestFuseDaemon stops the daemon of a volume, lets it hang, and kills it: the answer
// names the process. With --fuse-abort the connection of one that hangs is aborted, and
// of no other.
func TestFuseDaemon(t *testing.T) {
	harness.NeedsKernel(t, harness.KernelIs(6, 16), "which daemon serves a FUSE connection")
	n := harness.NewNode(t, "--standalone", "--probe-timeout=1s", "--fuse-abort").Start()
	n.Transient = []string{"no answer within"} // an abort waits for ten times as long
	next := newNeighbour(n)
	v, fs := n.NewFUSEVolume("served", faultfs.Config{})
	another, _ := n.NewFUSEVolume("another", faultfs.Config{})
	n.Expect("healthy", v.Request())
	n.Expect("healthy", another.Request())
	before, daemon := n.Table(), fmt.Sprintf("process %d ", fs.PID())

	fs.Stop()
	n.Expect("abnormal", v.Request(), "NotResponding", "DaemonStopped", daemon, "(state T, since ", "kill -CONT")
	fs.Continue()
	n.Expect("healthy", v.Request())

	fs.Hang()
	n.Expect("abnormal", v.Request(), "DaemonHung", daemon, "Refused: abort-connection", " probes within ")
	harness.Eventually(t, "the connection is aborted", func() bool {
		text := message(t, n, v)
		return strings.Contains(text, "Done: abort-connection") && strings.Contains(text, "Disconnected")
	})
	n.SameTable(before)
	n.Expect("abnormal", v.Request(), "Disconnected")
	n.Expect("healthy", another.Request())
	next.untouched()

	fs.Kill()
	n.Expect("abnormal", v.Request(), "Disconnected", "DaemonGone", " has FUSE connection ", " open any more")
}

// message returns what a call answers.
func message(t *testing.T, n *harness.Node, v *harness.Volume) string {
	t.Helper()
	answer, err := n.Call(v.Request())
	harness.Must(t, err)
	return answer.GetMessage()
}
