package integration

import (
	"fmt"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
)

// TestHeld expects the message of a sick volume to name its holders: containers, and
// others.
func TestHeld(t *testing.T) {
	n := harness.NewNode(t, seesShutdown()...).Start()
	next := newNeighbour(n)
	v := n.NewVolume("ext4", "held")
	c := n.NewContainer(harness.PodUID, v.MountPoint())
	n.Expect("healthy", v.Request())
	holder := exec.Command("sleep", "100000")
	holder.Dir = v.MountPoint()
	holder.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	harness.Must(t, holder.Start())
	t.Cleanup(func() { _ = holder.Process.Kill(); _ = holder.Wait() })
	shutdown(t, v.Staging)
	for range 2 {
		n.Expect("abnormal", v.Request(), "FilesystemShutdown",
			"pod "+harness.PodUID+" container "+c.ID()[:12], fmt.Sprintf("pid %d sleep (cwd)", holder.Process.Pid), "2 mount namespaces")
	}
	next.untouched()
}
