package integration

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
)

// crowdedPod is the end of OtherPod, which is what a long message may leave of it.
var crowdedPod = harness.OtherPod[len(harness.OtherPod)-4:]

// TestPodWithTooManyMounts has a pod bind a shared volume more often than mounts are
// inspected, in one container or in many. The containers of the other pods are healed;
// this pod is named.
func TestPodWithTooManyMounts(t *testing.T) {
	for name, load := range map[string]struct{ containers, binds int }{
		"in one container":   {1, 600},
		"in many containers": {16, 63},
	} {
		t.Run(name, func(t *testing.T) {
			n := harness.NewNode(t, "--standalone").Start()
			next := newNeighbour(n)
			s := newServed(n, "shared by pods")
			s.Publish(harness.OtherPod)
			mountPoint := s.MountPointOf(harness.OtherPod)
			var crowded []*harness.Container
			for i := range load.containers { // they are the oldest
				c := n.StartContainer(harness.ContainerSpec{Pod: harness.OtherPod, Name: fmt.Sprint(i), Mounts: []harness.ContainerMount{{At: "/data", Source: mountPoint}}})
				c.InMounts(func() error { return bindInContainer(load.binds) })
				crowded = append(crowded, c)
			}
			u := s.usedBy(harness.ContainerSpec{Mounts: []harness.ContainerMount{{At: "/data", Source: s.MountPoint()}}})
			s.die()
			a, err := n.Call(s.Request())
			harness.Must(t, err)
			if message := a.GetMessage(); !a.GetAbnormal() || !strings.Contains(message, crowdedPod) || !strings.Contains(message, "To do: ") {
				t.Errorf("the crowded pod is not reported: %q", message)
			}
			u.reads()
			u.c.SameTable(u.table)
			next.untouched()
			for _, c := range crowded {
				c.Kill()
			}
			says(n, "healthy", s.Volume)
			u.reads()
		})
	}
}

// bindInContainer binds what a container has at /data many times, as a process in it
// that may mount does: twice at each path, so that none of it is replaced.
func bindInContainer(times int) error {
	if err := unix.Mount("tmpfs", "/dev", "tmpfs", 0, ""); err != nil {
		return err
	}
	for i := range times {
		at := fmt.Sprint("/dev/", i)
		if err := unix.Mkdir(at, 0o755); err != nil {
			return err
		}
		for range 2 {
			if err := unix.Mount("/data", at, "", unix.MS_BIND, ""); err != nil {
				return err
			}
		}
	}
	return unix.Mount("/data", "/data", "", unix.MS_BIND, "")
}
