package integration

import (
	"slices"
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/pkg/host"
	"github.com/csi-addons/node-healer/test/harness"
)

// TestInsideUserNamespace heals a container of a pod with a user namespace of its
// own, by a mount with the same mapping: its root owns what it owned.
func TestInsideUserNamespace(t *testing.T) {
	n := harness.NewNode(t).Start()
	v, d := n.NewFUSEDisk("idmapped", harness.FUSEConfig{IDMapped: true})
	s := &served{Volume: v, disk: d}
	c := n.StartUserContainer(harness.ContainerSpec{
		Mounts: []harness.ContainerMount{{At: "/data", Source: s.Place()}},
		Loop:   &harness.Loop{Read: "/data/a", Write: "/data/loop"},
	})
	s.known()
	u := &used{served: s, c: c, table: c.Table()}
	for range 2 {
		u.die()
		n.Expect("healed", u.Request(), "replace-in-container", c.ID()[:12])
		u.works()
		if out, err := c.Exec("stat", "-c", "%u:%g", "/data/a", "/data/loop"); err != nil || out != "0:0\n0:0\n" {
			t.Errorf("in the container the files belong to %q, %v", out, err)
		}
		if got := c.MountsAt("/data"); len(got) != 1 || !got[0].Attr.Has(host.AttrIDMap) {
			t.Errorf("the container has %v", got)
		}
		n.Expect("healthy", u.Request())
	}
}

// TestInsideOpenFiles heals a container and says who in it still has files open
// that stay dead: that needs a restart.
func TestInsideOpenFiles(t *testing.T) {
	n := harness.NewNode(t).Start()
	u := newUsed(n)
	u.c.Hold("/data/a")
	bystander := u.usedBy(harness.ContainerSpec{Name: "bystander", Mounts: []harness.ContainerMount{{At: "/data", Source: u.Place()}}})
	u.die()
	a, err := n.Call(u.Request())
	harness.Must(t, err)
	for _, has := range []string{"healed:", "pod " + harness.PodUID, "container " + u.c.ID()[:12], "open file"} {
		if !strings.Contains(a.GetMessage(), has) {
			t.Errorf("the message lacks %q: %q", has, a.GetMessage())
		}
	}
	u.works()
	bystander.works()
}

// TestInsideLocked leaves a mount namespace alone in which mounts are locked,
// since they came there from a user namespace with more privileges
// (mount_namespaces(7)), and says so.
func TestInsideLocked(t *testing.T) {
	n := harness.NewNode(t).Start()
	u := newUsed(n)
	locked := u.c.Fork("-U", "-m")
	before := u.c.MountsOf(locked, "/data")
	u.die()
	for range 2 {
		n.Expect("abnormal", u.Request(), "StaleInContainers", u.c.ID()[:12])
		u.works()
		if after := u.c.MountsOf(locked, "/data"); len(before) != 1 || !slices.EqualFunc(before, after, sameID) {
			t.Errorf("the locked namespace had %v, and has %v", before, after)
		}
	}
}
