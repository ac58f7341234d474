package harness

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// ContainerSpec says what a container is started with.
type ContainerSpec struct {
	// Pod is the UID of its pod, PodUID if it is empty.
	Pod string
	// Name tells the containers of a pod apart.
	Name   string
	Mounts []ContainerMount
	// Loop is what its process does; without one it sleeps.
	Loop *Loop

	// Firstless has its process end its first thread and live on in others.
	Firstless bool

	loopDir string // on the host
}

// ContainerMount is a mount of a container.
type ContainerMount struct {
	// At is its path in the container.
	At string
	// Type is a filesystem's type; a bind if it is empty.
	Type   string
	Source string
	// Options are those of mount(8) and a propagation (rprivate, rslave,
	// rshared), rprivate if there is none.
	Options []string
}

// propagation is what the options ask for.
func (m ContainerMount) propagation() string {
	for _, o := range m.Options {
		if slices.Contains([]string{"rprivate", "rslave", "rshared"}, o) {
			return o
		}
	}
	return ""
}

// readOnly is true for what the container must not write to.
func (m ContainerMount) readOnly() bool { return slices.Contains(m.Options, "ro") }

// options are all options, as a runtime of kubelet's hands them down: runc by
// itself makes a bind of kubelet's shared root a slave.
func (m ContainerMount) options() []string {
	if m.Type != "" {
		return m.Options
	}
	options := append([]string{"rbind"}, m.Options...)
	if m.propagation() == "" {
		options = append(options, "rprivate")
	}
	return options
}

func (s ContainerSpec) complete(n *Node) ContainerSpec {
	if s.Pod == "" {
		s.Pod = PodUID
	}
	if s.Loop != nil {
		s.loopDir = filepath.Join(n.Dir, "loop-"+s.id(n.T.Name()))
		s.Mounts = append(slices.Clone(s.Mounts), ContainerMount{At: loopAt, Source: s.loopDir})
	}
	return s
}

func (s ContainerSpec) container(n *Node) *Container {
	return &Container{node: n, id: s.id(n.T.Name()), pod: s.Pod, loop: s.loopDir}
}

func (s ContainerSpec) id(test string) string { return "c" + hash(test + s.Pod + s.Name)[:12] }

// layOut makes the bundle: a root filesystem that has busybox, and nothing else
// than what mounts stand on.
func (s ContainerSpec) layOut(t testing.TB, bundle string) {
	t.Helper()
	rootfs := filepath.Join(bundle, "rootfs")
	for _, d := range []string{"bin", "proc", "dev"} {
		Mkdir(t, filepath.Join(rootfs, d))
	}
	busybox, err := os.ReadFile("/bin/busybox")
	Must(t, err)
	Must(t, os.WriteFile(filepath.Join(rootfs, "bin/busybox"), busybox, 0o755))
	if s.Loop != nil {
		s.Loop.layOut(t, s.loopDir)
	}
}

func (s ContainerSpec) args() []string {
	if s.Loop != nil {
		return []string{"/bin/busybox", "sh", "/loop/script"}
	}
	if s.Firstless {
		return []string{attackerAt, "firstless"}
	}
	return []string{"/bin/busybox", "sleep", "100000"}
}

// config is the bundle's config.json.
func (s ContainerSpec) config(cgroup string) map[string]any {
	mounts := []map[string]any{{"destination": "/proc", "type": "proc", "source": "proc"}}
	linux := map[string]any{
		"cgroupsPath": cgroup,
		"namespaces":  []map[string]any{{"type": "mount"}, {"type": "pid"}},
	}
	for _, m := range s.Mounts {
		kind := m.Type
		if kind == "" {
			kind = "bind"
		}
		mounts = append(mounts, map[string]any{"destination": m.At, "type": kind, "source": m.Source, "options": m.options()})
		// As the runtimes do for Bidirectional and HostToContainer.
		if p := m.propagation(); strings.HasSuffix(p, "shared") || strings.HasSuffix(p, "slave") {
			if linux["rootfsPropagation"] != "rshared" {
				linux["rootfsPropagation"] = p
			}
		}
	}
	return map[string]any{
		"ociVersion": "1.0.2",
		"process":    map[string]any{"args": s.args(), "cwd": "/"},
		"root":       map[string]any{"path": "rootfs"},
		"mounts":     mounts,
		"linux":      linux,
	}
}
