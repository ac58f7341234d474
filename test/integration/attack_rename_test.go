package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
)

// TestAttackWithARename has a pod's user move the directory that a subPath shows
// deeper and deeper into its emptyDir, so that its path in the mount tables grows. All
// heals still work.
func TestAttackWithARename(t *testing.T) {
	for name, levels := range map[string]int{"a line of 70 KiB": 70, "a path of a MiB": 4400} {
		t.Run(name, func(t *testing.T) {
			n := harness.NewNode(t, "--standalone").Start()
			pod := filepath.Join(n.Kubelet, "pods", harness.UnrelatedPod)
			empty, sub := filepath.Join(pod, "volumes/kubernetes.io~empty-dir/e"), filepath.Join(pod, "volume-subpaths/e/app/0")
			harness.Mkdir(t, filepath.Join(empty, "sub"))
			harness.Mkdir(t, sub)
			harness.Must(t, os.Chmod(empty, 0o777))
			harness.Must(t, os.Chown(filepath.Join(empty, "sub"), attackerID, attackerID))
			harness.Must(t, unix.Mount(filepath.Join(empty, "sub"), sub, "", unix.MS_BIND, ""))
			t.Cleanup(func() { _ = unix.Unmount(sub, unix.MNT_DETACH) })
			n.StartContainer(harness.ContainerSpec{Pod: harness.UnrelatedPod, Mounts: []harness.ContainerMount{{At: "/sub", Source: sub}}})
			lost := n.NewVolume("ext4", "loses its mount")
			n.Expect("healthy", lost.Request())
			u := newUsed(n)
			moveDown(t, empty, levels)
			for range 2 {
				lost.Unpublish()
				says(n, "healed", lost, "rebind")
				u.die()
				says(n, "healed", u.Volume, "Done: replace", "replace-in-container")
				u.reads()
				says(n, "healthy", u.Volume)
			}
		})
	}
}

const attackerID = 1000

// moveDown moves a directory named sub many levels down, as the attacker's user, and fails
// the test unless the kernel shows all of the path.
func moveDown(t *testing.T, dir string, levels int) {
	t.Helper()
	script := `
import os, sys
os.chdir(sys.argv[1])
os.setgid(int(sys.argv[3]))
os.setuid(int(sys.argv[3]))
top = os.open(".", os.O_RDONLY)
fd, name = top, "\n" * 250
for _ in range(int(sys.argv[2])):
    os.mkdir(name, dir_fd=fd)
    fd, old = os.open(name, os.O_RDONLY, dir_fd=fd), fd
    if old != top:
        os.close(old)
os.rename("sub", "s", src_dir_fd=top, dst_dir_fd=fd)
`
	cmd := exec.Command("python3", "-", dir, strconv.Itoa(levels), strconv.Itoa(attackerID))
	cmd.Stdin = strings.NewReader(script)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	table, err := os.ReadFile("/proc/self/mountinfo")
	harness.Must(t, err)
	if len(table) < levels*1000 {
		t.Fatal("the table has no line that is so long: the test shows nothing")
	}
}
