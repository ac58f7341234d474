package harness

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Namespace is another mount namespace, with a process that keeps it.
type Namespace struct {
	t   testing.TB
	pid int
}

// NewNamespace makes a mount namespace with a propagation that unshare(1) knows.
func NewNamespace(t testing.TB, propagation string) Namespace {
	t.Helper()
	cmd := exec.Command("unshare", "--mount", "--propagation", propagation, "sleep", "100000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	Must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	Eventually(t, "the other namespace is there", func() bool {
		comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", cmd.Process.Pid))
		return string(comm) == "sleep\n"
	})
	return Namespace{t: t, pid: cmd.Process.Pid}
}

// At returns the attributes of the mounts at a path.
func (ns Namespace) At(path string) []string {
	ns.t.Helper()
	var found []string
	for _, m := range Mounts(ns.t, strconv.Itoa(ns.pid)) {
		if m.Path == path {
			found = append(found, m.Attr.String())
		}
	}
	return found
}
