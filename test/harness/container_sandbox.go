package harness

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// NewSandbox starts a process in a pod's cgroup that has the name of a program,
// such as those that make a sandboxed pod (virtiofsd, runsc-sandbox), and gives
// the id of its container.
func (n *Node) NewSandbox(pod, program string) string {
	n.T.Helper()
	t := n.T
	id := "c" + hash(t.Name() + pod + program)[:12]
	dir := filepath.Join(n.Dir, "sandbox-"+id)
	Mkdir(t, dir)
	busybox, err := os.ReadFile("/bin/busybox")
	Must(t, err)
	path := filepath.Join(dir, program)
	Must(t, os.WriteFile(path, busybox, 0o755))
	cmd := exec.Command(path)
	cmd.Args = []string{"sleep", "100000"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	Must(t, cmd.Start())
	// After it has left its cgroup: see joinPod.
	defer t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	joinPod(t, cmd.Process.Pid, pod, id)
	Eventually(t, "the program runs", func() bool {
		comm, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(cmd.Process.Pid), "comm"))
		return len(comm) > 0 && string(comm[:len(comm)-1]) == program[:min(len(program), 15)]
	})
	return id
}
