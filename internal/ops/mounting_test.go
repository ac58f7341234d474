package ops

import (
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Root's processes that have the path in their arguments count, of those that came since.
func TestMounting(t *testing.T) {
	const path = "/var/lib/kubelet/plugins/kubernetes.io/csi/d/0123/globalmount"
	if unix.Geteuid() != 0 {
		t.Skip("needs root")
	}
	start := func(uid uint32, args ...string) int {
		t.Helper()
		c := exec.CommandContext(t.Context(), "sh", append([]string{"-c", "read forever", "sh"}, args...)...)
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid}}
		_, err := c.StdinPipe()
		must(t, err)
		must(t, c.Start())
		t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
		return c.Process.Pid
	}
	sinceBoot := func() time.Duration {
		var now unix.Timespec
		must(t, unix.ClockGettime(unix.CLOCK_BOOTTIME, &now))
		return time.Duration(now.Nano())
	}
	begun := sinceBoot()
	roots := start(0, "--mount="+path, "bucket")
	start(65534, "--mount="+path)
	start(0, "/elsewhere")
	named := func(since time.Duration) (pids []int) {
		t.Helper()
		found, err := mounting(MountingQuery{Paths: []string{"/another", path}, Since: since, Driver: unix.Getpid(), Budget: time.Minute})
		must(t, err)
		for _, d := range found {
			if d.Command != "sh" || d.Started < since-time.Second {
				t.Errorf("it is %+v", d)
			}
			pids = append(pids, d.PID)
		}
		return pids
	}
	if pids := named(begun); len(pids) != 1 || pids[0] != roots {
		t.Errorf("processes %v, want %s", pids, strconv.Itoa(roots))
	}
	if pids := named(sinceBoot() + time.Second); len(pids) != 0 {
		t.Errorf("processes %v of before", pids)
	}
}
