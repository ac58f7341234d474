package harness

import (
	"bufio"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// InMounts does something in the container's mount namespace, with the test's
// privileges: a path is the container's. Meanwhile nothing else in the test may
// rely on where it is.
func (c *Container) InMounts(do func() error) {
	c.node.T.Helper()
	Must(c.node.T, inNamespace(c.pid, do))
}

// leave starts a command that goes on, and waits until it has said something.
func (c *Container) leave(cmd *exec.Cmd) (pid int) {
	t := c.node.T
	t.Helper()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	Must(t, err)
	Must(t, cmd.Start())
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("%q said nothing: %v", cmd.Args, err)
	}
	return cmd.Process.Pid
}

// Hold has a process inside keep a file open.
func (c *Container) Hold(path string) { c.node.T.Helper(); c.goOn("exec 9<" + path) }

// Pretend has a process inside take the name of another program.
func (c *Container) Pretend(program string) {
	c.node.T.Helper()
	c.goOn("echo " + program + " >/proc/self/comm")
}

// goOn has a shell inside run a command, and goes on when it has.
func (c *Container) goOn(command string) {
	c.node.T.Helper()
	cmd := c.command([]string{"sh", "-c", command + " && echo done && while :; do /bin/busybox sleep 100000; done"})
	c.leave(cmd)
	c.node.T.Cleanup(func() { c.Kill(); _ = cmd.Process.Kill(); _ = cmd.Wait() })
}

// Fork starts a process of the container that has a mount namespace of its own,
// by the options of busybox's unshare, and returns the process.
func (c *Container) Fork(options ...string) int {
	t := c.node.T
	t.Helper()
	args := slices.Concat([]string{"--target", strconv.Itoa(c.pid), "--mount", "--root", "--wd", "/bin/busybox", "unshare"}, options,
		[]string{"/bin/busybox", "sh", "-c", "echo there && exec /bin/busybox sleep 100000"})
	cmd := exec.Command("nsenter", args...)
	pid := c.leave(cmd)
	joinPod(t, pid, c.pod, c.id)
	t.Cleanup(func() { c.Kill(); _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return pid
}

// MountsOf returns the mounts that stand at a path for a process that Fork gave.
func (c *Container) MountsOf(pid int, path string) []facts.Mount {
	c.node.T.Helper()
	return layersOf(c.node.T, strconv.Itoa(pid), path)
}

// Freeze stops all processes of the container.
func (c *Container) Freeze() { c.runc("pause") }

// Thaw lets them go on.
func (c *Container) Thaw() { c.runc("resume") }

func (c *Container) runc(command string) {
	c.node.T.Helper()
	args := slices.Clone(c.enter[1:])
	args[len(args)-2] = command // instead of exec
	Run(c.node.T, "runc", args...)
}
