package bench

import (
	"fmt"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/test/harness"
)

// starts is how often the server is started.
const starts = 20

// TestStart measures from the start of the server's process to its first answer
// for a volume. The caller looks for the socket every 2 ms: so much is the
// caller's.
func TestStart(t *testing.T) {
	wanted(t, "start")
	n := harness.NewNode(t, asReleased)
	v := newLoops(n).volume("ext4")
	var took times
	for range starts {
		start := time.Now()
		n.StartUnanswered()
		n.Expect("healthy", v.Request())
		took = append(took, time.Since(start))
		n.Stop()
	}
	row(fmt.Sprintf("start to first answer, median of %d", starts),
		fmt.Sprintf("best %s, worst %s", milli(took.quantile(0)), milli(took.quantile(1))),
		float64(took.median())/1e6, atMost(50, " ms"))
}
