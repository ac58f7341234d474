package harness

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// StartSandbox starts processes in a directory of a pod's cgroup, which stay in the
// host's mount namespace and have the names of programs, such as those that run a
// sandboxed pod (virtiofsd, runsc-sandbox): the first is the oldest. end ends them.
func (n *Node) StartSandbox(pod, dir string, programs ...string) (end func()) {
	n.T.Helper()
	t := n.T
	var all []*exec.Cmd
	end = sync.OnceFunc(func() {
		for _, cmd := range all {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	for _, program := range programs {
		cmd := n.program(program)
		Must(t, cmd.Start())
		all = append(all, cmd)
		joinPod(t, cmd.Process.Pid, pod, dir)
		Eventually(t, "the program runs", func() bool {
			comm, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(cmd.Process.Pid), "comm"))
			return len(comm) > 0 && string(comm[:len(comm)-1]) == program[:min(len(program), 15)]
		})
	}
	t.Cleanup(end) // before what joinPod does then
	return end
}

// program is a command that only sleeps, by this name.
func (n *Node) program(name string) *exec.Cmd {
	n.T.Helper()
	dir := filepath.Join(n.Dir, "programs")
	Mkdir(n.T, dir)
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err != nil {
		busybox, err := os.ReadFile("/bin/busybox")
		Must(n.T, err)
		Must(n.T, os.WriteFile(path, busybox, 0o755))
	}
	cmd := exec.Command(path)
	cmd.Args = []string{"sleep", "100000"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	return cmd
}
