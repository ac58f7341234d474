package integration

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
)

// TestRebindStaysInTheVolume replaces parts of the path to the subdirectory that a
// mount point showed. The content of a volume belongs to the workload: a link or mount
// that it puts on the way is not followed.
func TestRebindStaysInTheVolume(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, sub string){
		"a link to another directory of the volume": func(t *testing.T, sub string) {
			harness.Must(t, os.Symlink("moved", sub))
		},
		"a link out of the volume": func(t *testing.T, sub string) {
			outside := t.TempDir()
			harness.Mkdir(t, filepath.Join(outside, "deep"))
			harness.Must(t, os.Symlink(outside, sub))
		},
		"a link out of it by dots": func(t *testing.T, sub string) {
			outside := filepath.Join(filepath.Dir(filepath.Dir(sub)), "outside")
			harness.Mkdir(t, filepath.Join(outside, "deep"))
			harness.Must(t, os.Symlink("../outside", sub))
		},
		"another filesystem": func(t *testing.T, sub string) {
			harness.Mkdir(t, sub)
			harness.Must(t, unix.Mount("unrelated", sub, "tmpfs", 0, "size=1m"))
			harness.Mkdir(t, filepath.Join(sub, "deep"))
		},
		"a bind of the volume's own directory": func(t *testing.T, sub string) {
			harness.Mkdir(t, sub)
			harness.Must(t, unix.Mount(filepath.Join(filepath.Dir(sub), "moved"), sub, "", unix.MS_BIND, ""))
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := harness.NewNode(t, "--standalone").Start()
			v := n.NewVolume("ext4", "spoiled")
			v.Unpublish()
			harness.Must(t, unix.Mount(filepath.Join(v.Staging, "sub", "deep"), v.MountPoint(), "", unix.MS_BIND, ""))
			n.Expect("healthy", v.Request())
			v.Unpublish()
			harness.Must(t, os.Rename(filepath.Join(v.Staging, "sub"), filepath.Join(v.Staging, "moved")))
			spoil(t, filepath.Join(v.Staging, "sub"))
			before := n.Table()
			for range 2 {
				n.Expect("abnormal", v.Request(), "NotMounted", "the directory that was mounted is")
				n.SameTable(before)
			}
		})
	}
}
