package integration

import (
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/test/harness"
)

// TestInContainerIsReported reports a container with a dead volume, and that it has
// its data again: events on pod and claim, the claim's health, and CSI's answers.
func TestInContainerIsReported(t *testing.T) {
	m := newMember(t)
	m.Args = append(m.Args, "--heal-containers=off")
	m.Start()
	v, d := m.servedClaimed("told-of-a-container")
	c := m.StartContainer(harness.ContainerSpec{Pod: string(v.pod.UID), Mounts: []harness.ContainerMount{{At: "/data", Source: v.MountPoint()}}})
	m.Expect("healthy", v.Request())
	d.Kill()
	d.Restage()
	m.Expect("abnormal", v.Request(), "StaleInContainers", c.ID()[:12])
	v.becomes("unhealthy", "StaleInContainers")
	if got := csiHealth(t, m.Node, &csi.NodeGetVolumeHealthRequest{VolumeId: v.ID}); len(got) != 1 || !strings.HasSuffix(got[0], " StaleInContainers") {
		t.Errorf("CSI is told %q", got)
	}
	m.Stop()
	m.Args = m.Args[:len(m.Args)-1]
	m.Start()
	m.Expect("healed", v.Request(), "replace-in-container")
	v.becomes("healthy")
	for _, object := range []string{v.pod.Name, v.claim.Name} {
		var all []string
		var messages string
		harness.Eventually(t, "events on "+object, func() bool {
			all, messages = m.told(object)
			return slices.ContainsFunc(all, func(e string) bool { return strings.HasPrefix(e, "Normal VolumeHealed ") })
		})
		abnormal := slices.ContainsFunc(all, func(e string) bool { return strings.HasPrefix(e, "Warning VolumeAbnormal ") })
		if !abnormal || !strings.Contains(messages, "StaleInContainers") {
			t.Errorf("on %s there are %q: %s", object, all, messages)
		}
	}
	if got := csiHealth(t, m.Node, &csi.NodeGetVolumeHealthRequest{VolumeId: v.ID}); len(got) != 0 {
		t.Errorf("CSI is told %q", got)
	}
}

// TestStaleBeforeTheFirstCall starts a server after the daemon died and the driver
// staged and published again by itself. Nothing is known of the volume, so its
// container is not changed, but reported by every call.
func TestStaleBeforeTheFirstCall(t *testing.T) {
	n := harness.NewNode(t)
	s := newServed(n, "from before")
	c := n.StartContainer(harness.ContainerSpec{Mounts: []harness.ContainerMount{{At: "/data", Source: s.MountPoint()}}})
	s.die()
	harness.Must(t, unix.Unmount(s.MountPoint(), unix.MNT_DETACH))
	harness.Must(t, unix.Mount(s.Staging, s.MountPoint(), "", unix.MS_BIND, ""))
	before := c.Mounts()
	n.Start()
	for range 3 {
		n.Expect("abnormal", s.Request(), "StaleInContainers", c.ID()[:12], "not proven")
		if after := c.Mounts(); !slices.EqualFunc(before, after, sameID) {
			t.Errorf("the container had %v, and has %v", before, after)
		}
	}
	c.Kill()
	n.Expect("healthy", s.Request())
}

// TestInContainerSharingUnknown has a driver replace the host's mount by itself. The
// peer group of the container's mount can no longer be determined, so the new one is
// private, and the answer says so.
func TestInContainerSharingUnknown(t *testing.T) {
	n := harness.NewNode(t).Start()
	u := newUsed(n, "rshared")
	u.die()
	harness.Must(t, unix.Unmount(u.MountPoint(), unix.MNT_DETACH))
	harness.Must(t, unix.Mount(u.Staging, u.MountPoint(), "", unix.MS_BIND, ""))
	n.Expect("healed", u.Request(), "replace-in-container", "shares none now")
	if got := u.c.MountsAt("/data"); len(got) != 1 || got[0].Propagation != (facts.Propagation{}) {
		t.Errorf("the container has %v", got)
	}
	if got := u.c.AwaitTurns(); got.Reads != got.Turns || got.Writes != got.Turns {
		t.Errorf("the loop in the container comes by this: %+v, and has met %q", got, u.c.Errors())
	}
	n.Expect("healthy", u.Request())
}
