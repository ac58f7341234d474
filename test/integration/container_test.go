package integration

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// container is a real container of runc, as kubelet's runtime starts them: in a
// cgroup that names its pod, with the volume mounted at /data.
type container struct {
	t     *testing.T
	id    string
	pod   string
	state string
}

// newContainer starts a container that has source mounted at /data. Without an
// option runc makes the mount private, as kubelet asks for by default.
func (n *node) newContainer(pod, source string, options ...string) *container {
	n.t.Helper()
	t := n.t
	c := &container{t: t, id: "c" + hash(t.Name() + pod)[:12], pod: pod, state: filepath.Join(n.dir, "runc")}
	bundle := filepath.Join(n.dir, "bundle-"+c.id)
	for _, d := range []string{"bin", "data", "proc", "dev"} {
		mkdir(t, filepath.Join(bundle, "rootfs", d))
	}
	busybox, err := os.ReadFile("/bin/busybox")
	must(t, err)
	must(t, os.WriteFile(filepath.Join(bundle, "rootfs/bin/busybox"), busybox, 0o755))
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
	must(t, err)
	must(t, os.WriteFile(filepath.Join(bundle, "config.json"), raw, 0o600))
	t.Cleanup(c.kill)
	cmd := exec.Command("runc", "--root", c.state, "run", "--detach", "--bundle", bundle, c.id)
	log := filepath.Join(bundle, "log")
	f, err := os.Create(log)
	must(t, err)
	defer f.Close()
	cmd.Stdout, cmd.Stderr = f, f
	if err := cmd.Run(); err != nil {
		text, _ := os.ReadFile(log)
		t.Fatalf("runc run: %v\n%s", err, text)
	}
	return c
}

// kill ends the container and removes it.
func (c *container) kill() {
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

// exec runs a command inside.
func (c *container) exec(args ...string) (string, error) {
	out, err := exec.Command("runc", append([]string{"--root", c.state, "exec", c.id, "/bin/busybox"}, args...)...).CombinedOutput()
	return string(out), err
}

// TestWanted heals a place without --standalone only while a running container
// of its pod has the volume mounted.
func TestWanted(t *testing.T) {
	n := newNode(t).start()
	v := n.newVolume("ext4", "wanted")
	n.expect("healthy", v.request())
	before := n.table()

	v.unpublish()
	unmounted := n.table()
	n.expect("abnormal", v.request(), "no running container")
	n.sameTable(unmounted)

	v.publishAgain()
	other := n.newContainer("99999999-0000-4000-8000-000000000009", v.place(podUID))
	v.unpublish()
	n.expect("abnormal", v.request(), "no running container")
	other.kill()

	v.publishAgain()
	c := n.newContainer(podUID, v.place(podUID))
	v.unpublish()
	n.expect("healed", v.request(), "NotMounted", "rebind")
	n.sameTable(before)
	if out, err := c.exec("cat", "/data/a"); err != nil || !strings.Contains(out, "first") {
		t.Errorf("the container lost its data: %v %q", err, out)
	}

	v.unpublish()
	c.kill()
	n.expect("abnormal", v.request(), "no running container")
	n.sameTable(unmounted)
}

// publishAgain binds the staged volume where it was published.
func (v *volume) publishAgain() {
	v.node.t.Helper()
	run(v.node.t, "mount", "--bind", v.stagedFile(), v.place(podUID))
}
