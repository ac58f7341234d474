package integration

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRebindStaysInTheVolume spoils the way to the subdirectory that a place
// showed. The content of a volume belongs to the workload: whatever it put on
// the way leads nowhere.
func TestRebindStaysInTheVolume(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, sub string){
		"a link to another directory of the volume": func(t *testing.T, sub string) {
			must(t, os.Symlink("moved", sub))
		},
		"a link out of the volume": func(t *testing.T, sub string) {
			outside := t.TempDir()
			mkdir(t, filepath.Join(outside, "deep"))
			must(t, os.Symlink(outside, sub))
		},
		"a link out of it by dots": func(t *testing.T, sub string) {
			outside := filepath.Join(filepath.Dir(filepath.Dir(sub)), "outside")
			mkdir(t, filepath.Join(outside, "deep"))
			must(t, os.Symlink("../outside", sub))
		},
		"another filesystem": func(t *testing.T, sub string) {
			mkdir(t, sub)
			must(t, unix.Mount("stranger", sub, "tmpfs", 0, "size=1m"))
			mkdir(t, filepath.Join(sub, "deep"))
		},
		"a bind of the volume's own directory": func(t *testing.T, sub string) {
			mkdir(t, sub)
			must(t, unix.Mount(filepath.Join(filepath.Dir(sub), "moved"), sub, "", unix.MS_BIND, ""))
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, "--standalone").start()
			v := n.newVolume("ext4", "spoiled")
			v.unpublish()
			must(t, unix.Mount(filepath.Join(v.staging, "sub", "deep"), v.place(podUID), "", unix.MS_BIND, ""))
			n.expect("healthy", v.request())
			v.unpublish()
			must(t, os.Rename(filepath.Join(v.staging, "sub"), filepath.Join(v.staging, "moved")))
			spoil(t, filepath.Join(v.staging, "sub"))
			before := n.table()
			for range 2 {
				n.expect("abnormal", v.request(), "NotMounted", "resolve the directory of the place")
				n.sameTable(before)
			}
		})
	}
}
