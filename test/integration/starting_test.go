package integration

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/node"
	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/test/harness"
)

// stopReplaceOfADisk is stopReplace for a disk that comes back under another name.
func stopReplaceOfADisk(t *testing.T, fs, instants string) halfway {
	t.Helper()
	return stopHealing(t, fs, instants, func(v *harness.Volume) {
		shutdown(t, v.Staging)
		options := ""
		if fs == "xfs" {
			options = "nouuid" // the dead one is still mounted
		}
		restageDisk(v, options)
	})
}

// TestContainerStartsDuringAStep starts a container at every instant of a step. It ends
// with the mount that it would have had, or the answer is abnormal and names it.
func TestContainerStartsDuringAStep(t *testing.T) {
	replacing := replaceInstants
	if !harness.Full() {
		replacing = replaceTurns
	}
	// No container starts on a dead FUSE or xfs.
	onceDetached := replacing[slices.Index(replacing, "replace/detached"):]
	for step, s := range map[string]struct {
		instants []string
		stop     func(t *testing.T, instant string) halfway
	}{
		"rebind of ext4":  {instants, func(t *testing.T, at string) halfway { return stopRebind(t, "ext4", at) }},
		"rebind of xfs":   {someOf(instants), func(t *testing.T, at string) halfway { return stopRebind(t, "xfs", at) }},
		"rebind of btrfs": {someOf(instants), func(t *testing.T, at string) halfway { return stopRebind(t, "btrfs", at) }},
		"rebind of tmpfs": {someOf(instants), func(t *testing.T, at string) halfway { return stopRebind(t, "tmpfs", at) }},
		"replace of FUSE": {onceDetached, func(t *testing.T, at string) halfway { h, _ := stopReplace(t, at); return h }},
		"replace of ext4": {replacing, func(t *testing.T, at string) halfway { return stopReplaceOfADisk(t, "ext4", at) }},
		"replace of xfs":  {someOf(onceDetached), func(t *testing.T, at string) halfway { return stopReplaceOfADisk(t, "xfs", at) }},
		"in a container":  {threeOf(inContainerInstants), func(t *testing.T, at string) halfway { h, _ := stopInContainer(t, at); return h }},
	} {
		for _, instant := range s.instants {
			t.Run(step+" at "+instant, func(t *testing.T) { testStartsDuring(t, s.stop(t, instant)) })
		}
	}
}

// TestContainerStartsWithOptions is the same for containers that ask for a read-only
// mount, and for one that follows the host's.
func TestContainerStartsWithOptions(t *testing.T) {
	for _, option := range []string{"ro", "rslave", "rshared"} {
		for _, instant := range someOf([]string{"rebind/checked", "rebind/verified", "finalize/set"}) {
			t.Run(option+" at "+instant, func(t *testing.T) { testStartsDuring(t, stopRebind(t, "ext4", instant), option) })
		}
	}
}

// TestContainerStartsOnASubPath has kubelet bind a subPath of what is at the target in the middle of
// a step: it mounts that again with what statfs(2) says (getBindMountOptions of k8s.io/mount-utils).
func TestContainerStartsOnASubPath(t *testing.T) {
	for _, instant := range []string{"rebind/verified", "finalize/alone"} {
		t.Run(instant, func(t *testing.T) {
			h := stopRebind(t, "ext4", instant)
			at := filepath.Join(h.n.Kubelet, "pods", harness.PodUID, "volume-subpaths", h.v.PV, "app", "0")
			harness.Mkdir(t, at)
			harness.Must(t, unix.Mount(h.v.MountPoint(), at, "", unix.MS_BIND, ""))
			var of unix.Statfs_t
			harness.Must(t, unix.Statfs(h.v.MountPoint(), &of))
			flags := uintptr(of.Flags) & (unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC)
			harness.Must(t, unix.Mount("", at, "", unix.MS_REMOUNT|unix.MS_BIND|flags, ""))
			testStartsFrom(t, h, at)
		})
	}
}

func testStartsDuring(t *testing.T, h halfway, options ...string) {
	t.Helper()
	testStartsFrom(t, h, h.v.MountPoint(), options...)
}

func testStartsFrom(t *testing.T, h halfway, source string, options ...string) {
	t.Helper()
	spec := harness.ContainerSpec{Name: "during", Mounts: []harness.ContainerMount{{At: "/data", Source: source, Options: options}}}
	c := h.n.StartContainer(spec)
	first := h.LetGo()
	// What it would have had, it gets from a mount point that is healthy.
	spec.Name, spec.Mounts[0].Source = "after", h.v.MountPoint()
	after := h.n.StartContainer(spec)
	want := dataOf(after)
	after.Kill()
	named := func(a *healerpb.NodeHealerResponse) {
		t.Helper()
		got := dataOf(c)
		switch {
		case a == nil:
			t.Fatalf("no answer: %v", h.Err())
		case a.GetAbnormal() == (got == want):
			t.Errorf("the container has %v, want %v, and the answer is %s", got, want, a.GetMessage())
		case got != want && !strings.Contains(a.GetMessage(), c.ID()[:12]):
			t.Errorf("the container is not named: %s", a.GetMessage())
		}
	}
	named(first)
	named(h.n.Begin(h.v.Request()).LetGo())
	c.Kill()
	if a := h.n.Begin(h.v.Request()).LetGo(); a == nil || a.GetAbnormal() {
		t.Errorf("without the container: %v", a)
	}
}

// dataOf describes the mount that a container's process gets to at /data.
func dataOf(c *harness.Container) string {
	m := node.NewTable(c.Mounts()).Stack("/data")[0]
	return m.Dev.String() + " " + m.Root + " " + m.Attr.String()
}
