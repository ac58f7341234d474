package ops

import (
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
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
	pages := strings.Repeat("x", maxArguments/2) // the kernel tells all of them in one read
	roots := start(0, pages, "--mount="+path, "bucket")
	start(65534, "--mount="+path)
	start(0, "/elsewhere")
	named := func(since time.Duration) (pids []int) {
		t.Helper()
		q := MountingQuery{Paths: []string{"/another", path}, Since: since, Driver: unix.Getpid(), Budget: time.Minute}
		found, err := mounting(q)
		for end := time.Now().Add(time.Minute); errors.Is(err, errWalkCut) && time.Now().Before(end); { // a busy machine
			found, err = mounting(q)
		}
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

// A process that counts and whose arguments cannot be read may be the one; any other may be skipped.
func TestMountingWithoutArguments(t *testing.T) {
	const path = "/staging"
	process := func(started int, uid, cmdline string) map[string]string {
		return map[string]string{
			"stat":   fmt.Sprintf("10 (s3fs) S %s %d 0 0\n", strings.Repeat("0 ", 18), started),
			"cgroup": "0::/\n", "status": fmt.Sprintf("PPid:\t1\nUid:\t%s\t%s\t%s\t%s\n", uid, uid, uid, uid), "cmdline": cmdline,
		}
	}
	for name, tc := range map[string]struct {
		processes map[int]map[string]string
		found     int
		told      bool
	}{
		"it cannot be read":   {map[int]map[string]string{10: process(200, "0", "FIFO")}, 0, false},
		"of before":           {map[int]map[string]string{10: process(50, "0", "FIFO")}, 0, true},
		"of another user":     {map[int]map[string]string{10: process(200, "7", "FIFO")}, 0, true},
		"beside one that has": {map[int]map[string]string{10: process(200, "0", "FIFO"), 11: process(200, "0", "s3fs\x00"+path)}, 1, true},
	} {
		s := &scan{proc: procTree(t, tc.processes), end: time.Now().Add(time.Minute)}
		found, err := s.mounting(MountingQuery{Paths: []string{path}, Since: time.Second})
		for tc.told && err != nil && !s.cut { // a busy machine does not read it in time
			found, err = s.mounting(MountingQuery{Paths: []string{path}, Since: time.Second})
		}
		if len(found) != tc.found || (err == nil) != tc.told {
			t.Errorf("%s: %+v, %v", name, found, err)
		}
	}
}
