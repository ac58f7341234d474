package harness

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
)

// Container is a real container of runc, as kubelet's runtime starts them: in a
// cgroup that names its pod, with the volume mounted at /data.
type Container struct {
	id    string
	pod   string
	state string
}

// NewContainer starts a container that has source mounted at /data. Without an
// option runc makes the mount private, as kubelet asks for by default.
func (n *Node) NewContainer(pod, source string, options ...string) *Container {
	n.T.Helper()
	t := n.T
	c := &Container{id: "c" + hash(t.Name() + pod)[:12], pod: pod, state: filepath.Join(n.Dir, "runc")}
	bundle := filepath.Join(n.Dir, "bundle-"+c.id)
	for _, d := range []string{"bin", "data", "proc", "dev"} {
		Mkdir(t, filepath.Join(bundle, "rootfs", d))
	}
	busybox, err := os.ReadFile("/bin/busybox")
	Must(t, err)
	Must(t, os.WriteFile(filepath.Join(bundle, "rootfs/bin/busybox"), busybox, 0o755))
	spec := map[string]any{
		"ociVersion": "1.0.2",
		"process":    map[string]any{"args": []string{"/bin/busybox", "sleep", "100000"}, "cwd": "/"},
		"root":       map[string]any{"path": "rootfs"},
		"mounts": []map[string]any{
			{"destination": "/proc", "type": "proc", "source": "proc"},
			{"destination": "/data", "type": "bind", "source": source, "options": append([]string{"rbind"}, options...)},
		},
		"linux": map[string]any{
			"cgroupsPath": "/kubepods/burstable/pod" + pod + "/" + c.id,
			"namespaces":  []map[string]any{{"type": "mount"}, {"type": "pid"}},
		},
	}
	raw, err := json.Marshal(spec)
	Must(t, err)
	Must(t, os.WriteFile(filepath.Join(bundle, "config.json"), raw, 0o600))
	t.Cleanup(c.Kill)
	cmd := exec.Command("runc", "--root", c.state, "run", "--detach", "--bundle", bundle, c.id)
	log := filepath.Join(bundle, "log")
	f, err := os.Create(log)
	Must(t, err)
	defer f.Close()
	cmd.Stdout, cmd.Stderr = f, f
	if err := cmd.Run(); err != nil {
		text, _ := os.ReadFile(log)
		t.Fatalf("runc run: %v\n%s", err, text)
	}
	return c
}

// Kill ends the container and removes it.
func (c *Container) Kill() {
	_ = exec.Command("runc", "--root", c.state, "kill", c.id, "KILL").Run()
	_ = exec.Command("runc", "--root", c.state, "delete", "--force", c.id).Run()
	// runc leaves the pod's own cgroup, as a kubelet would remove it.
	for _, pattern := range []string{"/sys/fs/cgroup/kubepods", "/sys/fs/cgroup/*/kubepods"} {
		roots, _ := filepath.Glob(pattern)
		for _, root := range roots {
			for _, dir := range []string{filepath.Join("burstable", "pod"+c.pod), "burstable", "."} {
				_ = os.Remove(filepath.Join(root, dir))
			}
		}
	}
}

// Exec runs a command of busybox inside.
func (c *Container) Exec(args ...string) (string, error) {
	out, err := exec.Command("runc", append([]string{"--root", c.state, "exec", c.id, "/bin/busybox"}, args...)...).CombinedOutput()
	return string(out), err
}

// ID is the container's id, as its cgroup names it.
func (c *Container) ID() string { return c.id }
