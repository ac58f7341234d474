package integration

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/csidriver"
)

// staysAtWork loses the volume's target while the driver does not come to an end, so that
// nothing else heals it in several calls; then the driver gives up.
func staysAtWork(d *harness.CSIDriver, n *harness.Node, v *harness.Volume) {
	n.T.Helper()
	v.Unpublish()
	lost := n.Table()
	for i, code := range []codes.Code{codes.DeadlineExceeded, codes.Aborted, codes.Internal} {
		d.Behave(csidriver.Mode{Answers: map[string]csidriver.Answer{"NodeHealer": {Code: code}}})
		switch {
		case code == codes.Internal:
			n.Expect("healed", v.Request(), "(NodeHealer: INTERNAL", "; rebind of the target")
		case i > 0:
			n.Expect("abnormal", v.Request(), "delegate of the target failed", "Refused: rebind", "may still be at work since ")
			n.SameTable(lost)
		default:
			n.Expect("abnormal", v.Request(), "(NodeHealer: DEADLINE_EXCEEDED")
			n.SameTable(lost)
		}
	}
}

// TestVendorsDriver asks a driver that serves its sockets where drivers do.
func TestVendorsDriver(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	v := n.NewVolume("ext4", "of a vendor")
	d := n.NewCSIDriver(csidriver.Mode{})
	before := n.Table()
	n.Expect("healthy", v.Request())

	d.Behave(csidriver.Mode{Health: []string{"ReplicaLost", "1 of 2"}})
	n.Expect("abnormal", v.Request(), "DriverReportsAbnormal", "driver "+harness.Driver+" says: ReplicaLost (1 of 2)")
	d.Behave(csidriver.Mode{})

	staysAtWork(d, n, v)
	n.SameTable(before)

	answers := func(a csidriver.Answer) csidriver.Mode {
		return csidriver.Mode{Answers: map[string]csidriver.Answer{"NodeHealer": a}}
	}
	for _, tc := range []struct {
		mode csidriver.Mode
		says string
	}{
		{csidriver.Mode{Heal: csidriver.Publishes, UserKey: harness.Canary}, "Done: delegate of the target."},
		{csidriver.Mode{Heal: csidriver.OnlySays}, "; rebind of the target"},
		{answers(csidriver.Answer{Code: codes.Internal, Text: "key " + harness.Canary}), "Done: delegate of the target failed"},
		{csidriver.Mode{}, "(NodeHealer: UNIMPLEMENTED"},
		{csidriver.Mode{Heal: csidriver.OnlySays}, "Done: rebind of the target"}, // it is not asked again
	} {
		d.Behave(tc.mode)
		v.Unpublish()
		n.Expect("healed", v.Request(), tc.says)
		n.SameTable(before)
		n.Expect("healthy", v.Request())
	}
	if strings.Contains(n.Log.String(), harness.Canary) {
		t.Error("the log has a secret")
	}
}
