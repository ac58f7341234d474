package harness

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Container is a real container of runc, as kubelet's runtime starts them: in a
// cgroup that names its pod.
type Container struct {
	node *Node
	id   string
	pod  string
	pid  int
	// enter is the command that runs another one inside.
	enter []string
	// end ends the container.
	end func()
	// loop is where a Loop tells how it is, empty without one.
	loop string
}

// NewContainer starts a container that has source mounted at /data. Without an
// option the mount is private, as kubelet asks for by default.
func (n *Node) NewContainer(pod, source string, options ...string) *Container {
	n.T.Helper()
	return n.StartContainer(ContainerSpec{Pod: pod, Mounts: []ContainerMount{
		{At: "/data", Source: source, Options: options},
	}})
}

// StartContainer starts a container until the end of the test.
func (n *Node) StartContainer(spec ContainerSpec) *Container {
	n.T.Helper()
	t := n.T
	spec = spec.complete(n)
	c := spec.container(n)
	bundle := filepath.Join(n.Dir, "bundle-"+c.id)
	spec.layOut(t, bundle)
	if spec.Firstless {
		c.bringAttacker()
	}
	raw, err := json.Marshal(spec.config("/kubepods/burstable/pod" + spec.Pod + "/" + c.id))
	Must(t, err)
	Must(t, os.WriteFile(filepath.Join(bundle, "config.json"), raw, 0o600))
	runc := []string{"--root", filepath.Join(n.Dir, "runc")}
	c.enter = slices.Concat([]string{"runc"}, runc, []string{"exec", c.id})
	c.end = func() {
		_ = exec.Command("runc", append(runc, "kill", c.id, "KILL")...).Run()
		if spec.Firstless { // which runc takes for stopped
			_ = unix.Kill(c.pid, unix.SIGKILL)
		}
		_ = exec.Command("runc", append(runc, "delete", "--force", c.id)...).Run()
		removePodCgroup(c.pod)
	}
	t.Cleanup(c.Kill)
	pidFile := filepath.Join(bundle, "pid")
	run := append(runc, "run", "--detach", "--pid-file", pidFile, "--bundle", bundle, c.id)
	for tries := 3; ; tries-- {
		text, err := runLogged(run, filepath.Join(bundle, "log"))
		if err == nil {
			break
		}
		// Tests of another package may just have removed cgroups that were empty.
		if tries == 0 || !strings.Contains(text, "unable to apply cgroup configuration") {
			t.Fatalf("runc run: %v\n%s", err, text)
		}
		_ = exec.Command("runc", append(runc, "delete", "--force", c.id)...).Run()
	}
	pid, err := os.ReadFile(pidFile)
	Must(t, err)
	c.pid, err = strconv.Atoi(strings.TrimSpace(string(pid)))
	Must(t, err)
	return c
}

// runLogged runs runc with a file for what it says: a container that goes on
// would keep a pipe open.
func runLogged(args []string, log string) (text string, err error) {
	f, err := os.Create(log)
	if err != nil {
		return "", err
	}
	defer f.Close()
	cmd := exec.Command("runc", args...)
	cmd.Stdout, cmd.Stderr = f, f
	if err = cmd.Run(); err != nil {
		raw, _ := os.ReadFile(log)
		text = string(raw)
	}
	return text, err
}

// Kill ends the container and removes it.
func (c *Container) Kill() { c.end() }

// Exec runs a command of busybox inside.
func (c *Container) Exec(args ...string) (string, error) {
	out, err := c.command(args).CombinedOutput()
	return string(out), err
}

func (c *Container) command(args []string) *exec.Cmd {
	return exec.Command(c.enter[0], slices.Concat(c.enter[1:], []string{"/bin/busybox"}, args)...)
}

// ID is the container's id, as its cgroup names it.
func (c *Container) ID() string { return c.id }

// PID is the container's first process.
func (c *Container) PID() int { return c.pid }
