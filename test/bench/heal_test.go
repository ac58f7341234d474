package bench

import (
	"fmt"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/test/harness"
)

const (
	// healed is how often the mount is lost.
	healed = 50
	// rested is how often it is lost after so long without work that one worker is left.
	rested = 5
)

// TestHeal measures one heal whose steps each spend a worker: a lost mount of a
// filesystem is made anew.
func TestHeal(t *testing.T) {
	wanted(t, "heal")
	n := harness.NewNode(t, asReleased).Start()
	v := n.NewVolume("ext4", "lost")
	heal := func() time.Duration {
		v.Unpublish()
		return timeOf(func() { n.Expect("healed", v.Request()) })
	}
	n.StartContainer(harness.ContainerSpec{Name: v.ID, Mounts: []harness.ContainerMount{{At: "/data", Source: v.MountPoint()}}}) // which wants it
	n.Expect("healthy", v.Request())
	var busy, first times
	for range healed {
		busy = append(busy, heal())
	}
	for range rested {
		harness.Eventually(t, "one worker is left", func() bool { return len(n.Workers()) == 1 })
		first = append(first, heal())
	}
	row(fmt.Sprintf("a lost mount is back, p50 of %d heals in turn", healed),
		fmt.Sprintf("p90 %s; the first after a rest, p50 %s, worst %s", milli(busy.quantile(0.9)), milli(first.median()), milli(first.quantile(1))),
		float64(busy.median())/float64(time.Millisecond), untold(" ms"))
}
