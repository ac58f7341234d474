package harness_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/test/harness"
)

// TestContainerLoop tells of a process in a container what it could read and
// write, before and after the daemon behind its volume died.
func TestContainerLoop(t *testing.T) {
	for name, start := range map[string]func(n *harness.Node, spec harness.ContainerSpec) *harness.Container{
		"runc":           (*harness.Node).StartContainer,
		"user namespace": (*harness.Node).StartUserContainer,
	} {
		t.Run(name, func(t *testing.T) {
			n := harness.NewNode(t)
			v, d := n.NewFUSEDisk("a disk", harness.FUSEConfig{})
			c := start(n, harness.ContainerSpec{
				Mounts: []harness.ContainerMount{{At: "/data", Source: v.MountPoint()}},
				Loop:   &harness.Loop{Read: "/data/a", Write: "/data/loop"},
			})
			if got := c.AwaitTurns(); got.Reads != got.Turns || got.Writes != got.Turns {
				t.Errorf("of a healthy volume: %+v, %q", got, c.Errors())
			}
			if out, err := c.Exec("cat", "/data/a"); err != nil || !strings.Contains(out, "first") {
				t.Errorf("another process got %q, %v", out, err)
			}
			if raw, err := os.ReadFile(filepath.Join(d.Backing, "loop")); err != nil || len(raw) == 0 {
				t.Errorf("on the disk there is %q, %v", raw, err)
			}
			d.Kill()
			c.AwaitTurns()
			if got := c.AwaitTurns(); got.Reads != 0 || got.Writes != 0 {
				t.Errorf("of a dead volume: %+v, %q", got, c.Errors())
			}
			for _, e := range c.Errors() {
				if !strings.Contains(e, "not connected") && !strings.Contains(e, "connection abort") && !strings.Contains(e, "Input/output error") {
					t.Errorf("the loop met %q", e)
				}
			}
			if c.Starts() != 1 {
				t.Errorf("%d starts", c.Starts())
			}
		})
	}
}

// TestContainerPropagation starts containers whose mounts follow the host's as
// their options say.
func TestContainerPropagation(t *testing.T) {
	n := harness.NewNode(t)
	v, _ := n.NewFUSEDisk("a disk", harness.FUSEConfig{})
	for _, p := range []string{"", "rprivate", "rslave", "rshared"} {
		c := n.StartContainer(harness.ContainerSpec{Name: p, Mounts: []harness.ContainerMount{
			{At: "/data", Source: v.MountPoint(), Options: slices.DeleteFunc([]string{p, "noexec"}, func(o string) bool { return o == "" })},
		}})
		got := c.MountsAt("/data")[0].Propagation
		if shared, slave := p == "rshared", p == "rslave"; (got.Shared != 0) != shared || (got.Master != 0) != slave {
			t.Errorf("%q: %+v", p, got)
		}
	}
}
