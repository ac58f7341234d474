package bench

import (
	"fmt"
	"testing"

	"github.com/csi-addons/node-healer/test/harness"
)

// TestThousand measures what needs as many volumes as a large node has.
func TestThousand(t *testing.T) {
	lines := wanted(t, "sweep", "memory", "ext4")
	n := harness.NewNode(t, asReleased).Start()
	disks := newLoops(n)
	many := thousand{node: n}
	for i := range 1_000 {
		v := disks.volume(fmt.Sprintf("volume-%04d", i))
		many.volumes = append(many.volumes, v)
		many.requests = append(many.requests, encode(t, v.Request()))
	}
	if lines["sweep"] {
		many.sweep(t)
	}
	if lines["ext4"] {
		latencyOf{n, many.requests}.line("NodeHealer on 1,000 healthy ext4 loop volumes in turn, O_DIRECT read / Identity.Probe, p50", atMost(5, ""))
	}
	if lines["memory"] {
		many.memory(t)
	}
}

// thousand is a node with 1,000 healthy ext4 volumes.
type thousand struct {
	node     *harness.Node
	volumes  []*harness.Volume
	requests [][]byte
}
