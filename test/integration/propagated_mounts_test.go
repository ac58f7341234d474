package integration

import (
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
)

// TestDuplicateWithALivingPropagatedMount has a placeholder on a bind that shares its
// events, and something alive at the same directory of another mount that
// receives them: the kernel would unmount it together with the placeholder.
func TestDuplicateWithALivingPropagatedMount(t *testing.T) {
	for name, propagatedMount := range map[string]func(v *harness.Volume) string{
		"on staging": func(v *harness.Volume) string { return v.Staging },
		"on another bind of it": func(v *harness.Volume) string {
			p := filepath.Join(v.Node.Dir, "elsewhere")
			harness.Mkdir(v.Node.T, p)
			harness.Must(v.Node.T, unix.Mount(v.Staging, p, "", unix.MS_BIND, ""))
			return p
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := harness.NewNode(t, "--standalone").Start()
			v := n.NewVolume("ext4", "duplicated")
			n.Expect("healthy", v.Request())
			receiver := propagatedMount(v)
			// A slave receives, and what is done on it reaches no other mount.
			harness.Must(t, unix.Mount("", receiver, "", unix.MS_SLAVE, ""))
			healthy := len(n.Table())
			placeholderOn(t, v.Staging, v.MountPoint())
			if len(n.Table()) <= healthy+1 {
				t.Fatal("the duplicate did not propagate: the test shows nothing")
			}
			// The copy that it received makes way for something alive.
			harness.Must(t, unix.Unmount(receiver, 0))
			harness.Must(t, unix.Mount("unrelated", receiver, "tmpfs", 0, "size=1m"))
			before := n.Table()
			for range 2 {
				n.Expect("abnormal", v.Request(), "StackedMounts", "would also take")
				n.SameTable(before)
			}
		})
	}
}
