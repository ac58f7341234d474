package integration

import (
	"slices"
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/test/harness"
)

// TestInContainerOpenFiles heals a container in which a file is open, and says that such
// files stay dead.
func TestInContainerOpenFiles(t *testing.T) {
	n := harness.NewNode(t).Start()
	u := newUsed(n)
	u.c.Hold("/data/a")
	bystander := u.usedBy(harness.ContainerSpec{Name: "bystander", Mounts: []harness.ContainerMount{{At: "/data", Source: u.MountPoint()}}})
	u.die()
	a, err := n.Call(u.Request())
	harness.Must(t, err)
	for _, has := range []string{"healed:", "pod " + harness.PodUID, "container " + u.c.ID()[:12], "Files opened before stay dead"} {
		if !strings.Contains(a.GetMessage(), has) {
			t.Errorf("the message lacks %q: %q", has, a.GetMessage())
		}
	}
	u.works()
	bystander.works()
}

// TestInContainerApplicationsNamespaces leaves the mount namespaces alone that a
// container's processes made for themselves, with a user namespace of their own or
// without. They make no volume abnormal.
func TestInContainerApplicationsNamespaces(t *testing.T) {
	for name, options := range map[string][]string{"of the host's owner": {"-m"}, "of its own user namespace": {"-U", "-m"}} {
		t.Run(name, func(t *testing.T) {
			n := harness.NewNode(t).Start()
			u := newUsed(n)
			child := u.c.Fork(options...)
			before := u.c.MountsOf(child, "/data")
			for range 2 {
				u.die()
				n.Expect("healed", u.Request(), "replace-in-container")
				u.works()
				n.Expect("healthy", u.Request())
				if after := u.c.MountsOf(child, "/data"); len(before) != 1 || !slices.EqualFunc(before, after, sameID) {
					t.Errorf("the application's own namespace had %v, and has %v", before, after)
				}
			}
		})
	}
}
