package integration

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/test/harness"
)

// TestLoopObserves loses a bind while a container uses the volume. Nobody calls: the
// server notices, says so once, and changes nothing.
func TestLoopObserves(t *testing.T) {
	n := harness.NewNode(t, "--standalone", "--loop=observe", "--check-interval=10s")
	n.AnyDriver = true
	n.Start()
	v := n.NewVolume("tmpfs", "watched")
	n.NewContainer(harness.PodUID, v.MountPoint())
	harness.Eventually(t, "the volume is seen healthy", func() bool {
		records, err := os.ReadDir(n.StateDir() + "/records")
		return err == nil && len(records) == 1
	})
	time.Sleep(time.Second) // a volume that changes all the time is checked once a second
	files := openFiles(t, n.PID())
	const line = `"A watched volume changed" volume_id="watched"`
	v.Unpublish()
	lost, table := time.Now(), n.Table()
	harness.Eventually(t, "the lost bind is noticed", func() bool { return strings.Contains(n.Log.String(), line) })
	t.Logf("noticed within %s", time.Since(lost))
	if log := n.Log.String(); strings.Count(log, line) != 1 || !strings.Contains(log, `verdict="abnormal" found="NotMounted"`) {
		t.Errorf("the log is\n%s", log)
	}
	n.SameTable(table)
	if audit, err := os.ReadFile(n.StateDir() + "/audit.log"); err == nil && len(audit) > 0 {
		t.Errorf("something was done: %s", audit)
	}
	v.PublishAgain()
	harness.Eventually(t, "the recovery is noticed", func() bool { return strings.Count(n.Log.String(), line) == 2 })
	harness.Eventually(t, "no descriptor is left", func() bool { return openFiles(t, n.PID()) <= files })
}
