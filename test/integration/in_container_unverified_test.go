package integration

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
)

// unverified calls, and fails the test unless the volume is abnormal for nothing
// else than that it names these containers.
func (s *served) unverified(names ...string) {
	s.Node.T.Helper()
	s.Node.Expect("abnormal", s.Request(), append(names, "ContainerUnverified", "To do: delete the pod")...)
	a, err := s.Node.Call(s.Request())
	harness.Must(s.Node.T, err)
	for _, other := range []string{"Disconnected", "StaleInContainers"} {
		if strings.Contains(a.GetMessage(), other) {
			s.Node.T.Errorf("it is also %s: %q", other, a.GetMessage())
		}
	}
}

// notNamed calls, and fails the test when the answer names the container for another
// reason than that it uses the volume.
func (s *served) notNamed(c *harness.Container) {
	s.Node.T.Helper()
	a, err := s.Node.Call(s.Request())
	harness.Must(s.Node.T, err)
	said, _, _ := strings.Cut(a.GetMessage(), " Held by ")
	if strings.Contains(said, c.ID()[:12]) {
		s.Node.T.Errorf("a container is named that cannot have the previous superblock: %q", a.GetMessage())
	}
}

// TestInContainerUserNamespace leaves the container of a pod with a user namespace of
// its own exactly as it is, heals the host each time, and names the container until
// it has ended. One that came after the replacement is not named.
func TestInContainerUserNamespace(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	s := newServed(n, "with users of its own")
	start := func(name string) *harness.Container {
		return n.StartUserContainer(harness.ContainerSpec{
			Name: name, Mounts: []harness.ContainerMount{{At: "/data", Source: s.MountPoint()}},
			Loop: &harness.Loop{Read: "/data/a", Write: "/loop/written"},
		})
	}
	c := start("before")
	c.AwaitTurns() // with the root of its own
	s.known()
	before := c.Mounts()
	for range 2 {
		s.die()
		n.Expect("abnormal", s.Request(), "Disconnected", "Done: replace", "ContainerUnverified", c.ID()[:12])
		s.back()
		s.unverified(c.ID()[:12], "user namespace")
	}
	later := start("after")
	n.Kill()
	n.Start()
	s.unverified(c.ID()[:12])
	s.notNamed(later)
	if after := c.Mounts(); !slices.EqualFunc(before, after, sameID) {
		t.Errorf("the container had %v, and has %v", before, after)
	}
	c.Kill()
	n.Expect("healthy", s.Request())
	if got := later.AwaitTurns(); got.Reads != got.Turns {
		t.Errorf("the loop in the later container comes by this: %+v, and has met %q", got, later.Errors())
	}
	s.die()
	s.Node.Expect("abnormal", s.Request(), "Done: replace", later.ID()[:12])
	later.Kill()
	n.Expect("healthy", s.Request())
}

// TestInContainerUserNamespaceNeverReplaced says nothing of a container that cannot be inspected
// while the volume has had one superblock only.
func TestInContainerUserNamespaceNeverReplaced(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	s := newServed(n, "one superblock")
	n.StartUserContainer(harness.ContainerSpec{Mounts: []harness.ContainerMount{{At: "/data", Source: s.MountPoint()}}})
	s.known()
	s.Unpublish()
	n.Expect("healed", s.Request(), "rebind")
	n.Expect("healthy", s.Request())
}

// TestInContainerUserNamespaceStartedMeanwhile names a container that cannot be inspected
// and that started on the bare directory, until it has ended; not one that was there
// before, and not one that comes later.
func TestInContainerUserNamespaceStartedMeanwhile(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	v := n.NewVolume("tmpfs", "bare for a while")
	start := func(name string) *harness.Container {
		return n.StartUserContainer(harness.ContainerSpec{Name: name, Mounts: []harness.ContainerMount{{At: "/data", Source: v.MountPoint()}}})
	}
	named := func(is bool, c *harness.Container) {
		t.Helper()
		a, err := n.Call(v.Request())
		harness.Must(t, err)
		if strings.Contains(a.GetMessage(), c.ID()[:12]) != is {
			t.Errorf("%s: want named: %v, got %q", c.ID()[:12], is, a.GetMessage())
		}
	}
	before := start("before")
	n.Expect("healthy", v.Request())
	v.Unpublish()
	c := start("meanwhile")
	n.Expect("abnormal", v.Request(), "Done: rebind", "ContainerUnverified", c.ID()[:12], "may not have been mounted")
	later := start("later")
	for range 2 {
		named(true, c)
		named(false, before)
		named(false, later)
		n.Kill()
		n.Start()
	}
	c.Kill()
	n.Expect("healthy", v.Request())
}

// TestInContainerUserNamespaceOfANewPod has a pod deleted and another one created on the
// same node: kubelet has the volume unstaged and staged, which replaces nothing in
// the new pod's container.
func TestInContainerUserNamespaceOfANewPod(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	s := newServed(n, "of the next pod")
	c := n.StartUserContainer(harness.ContainerSpec{Mounts: []harness.ContainerMount{{At: "/data", Source: s.MountPoint()}}})
	s.known()
	c.Kill()
	s.Unpublish()
	harness.Must(t, os.RemoveAll(filepath.Join(n.Kubelet, "pods", harness.PodUID)))
	s.Keep() // so that its device number is not given out again
	s.disk.Restage()
	s.Publish(harness.OtherPod)
	next := n.StartUserContainer(harness.ContainerSpec{
		Pod: harness.OtherPod, Mounts: []harness.ContainerMount{{At: "/data", Source: s.MountPointOf(harness.OtherPod)}},
	})
	req := s.Request()
	req.VolumePath = s.MountPointOf(harness.OtherPod)
	for range 2 {
		n.Expect("healthy", req)
	}
	next.Kill()
}

// TestInContainerUserNamespaceRepairedByTheDriver has the driver replace a dead volume
// by itself: the container that was there is named all the same.
func TestInContainerUserNamespaceRepairedByTheDriver(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	s := newServed(n, "the driver's repair")
	c := n.StartUserContainer(harness.ContainerSpec{Mounts: []harness.ContainerMount{{At: "/data", Source: s.MountPoint()}}})
	s.known()
	was := s.disk.Dev()
	s.die()
	harness.Must(t, unix.Unmount(s.MountPoint(), unix.MNT_DETACH))
	harness.Must(t, unix.Mount(s.Staging, s.MountPoint(), "", unix.MS_BIND, ""))
	if s.disk.Dev() == was {
		t.Fatal("it has the device number of before: the test shows nothing")
	}
	s.unverified(c.ID()[:12])
	s.unverified(c.ID()[:12])
	c.Kill()
	n.Expect("healthy", s.Request())
}

// TestInContainerUserNamespaceDuringAnExec has the runtime start another process in such
// a container: on its way in it is still in the host's mount namespace.
func TestInContainerUserNamespaceDuringAnExec(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	s := newServed(n, "an exec")
	c := n.StartUserContainer(harness.ContainerSpec{Mounts: []harness.ContainerMount{{At: "/data", Source: s.MountPoint()}}})
	s.known()
	s.die()
	end := n.StartSandbox(harness.PodUID, c.ID(), "runc:[2:INIT]")
	n.Expect("abnormal", s.Request(), "ContainerUnverified", c.ID()[:12])
	end()
	c.Kill()
}

// sandboxes are the directories and programs by which a sandboxed pod is known.
var sandboxes = map[string]struct {
	dir      string
	programs []string
}{
	"Kata, cgroupfs":          {"kata_0123456789abcdef", []string{"containerd-shim-kata-v2", "qemu-system-x86_64"}},
	"Kata, systemd":           {"cri-containerd-0123456789abcdef.scope", []string{"containerd-shim-kata-v2", "virtiofsd", "cloud-hypervisor"}},
	"Kata with Firecracker":   {"cri-containerd-0123456789abcdef.scope", []string{"containerd-shim-kata-v2", "firecracker"}},
	"gVisor, first the gofer": {"0123456789abcdef", []string{"runsc-gofer", "runsc-sandbox"}},
	"gVisor, the sandbox":     {"cri-containerd-0123456789abcdef.scope", []string{"runsc-sandbox"}},
}

// TestInContainerSandboxed names the pod whose containers have a kernel of their own,
// until it has ended.
func TestInContainerSandboxed(t *testing.T) {
	for name, of := range sandboxes {
		t.Run(name, func(t *testing.T) {
			n := harness.NewNode(t, "--standalone").Start()
			s := newServed(n, "sandboxed")
			end := n.StartSandbox(harness.PodUID, of.dir, of.programs...)
			s.known()
			for range 2 {
				s.die()
				n.Expect("abnormal", s.Request(), "Disconnected", "Done: replace", "ContainerUnverified")
				s.back()
				s.unverified("pod "+harness.PodUID, "sandbox")
			}
			end()
			n.Expect("healthy", s.Request())
		})
	}
}

// TestInContainerSandboxedAfterwards says nothing of a sandbox that came after the
// replacement, or that has another pod.
func TestInContainerSandboxedAfterwards(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	s := newServed(n, "sandboxed later").known()
	n.StartSandbox(harness.UnrelatedPod, "kata_0123456789abcdef", "qemu-system-x86_64")
	s.die()
	n.Expect("healed", s.Request())
	n.StartSandbox(harness.PodUID, "kata_0123456789abcdef", "qemu-system-x86_64")
	n.Expect("healthy", s.Request())
}

// TestInContainerProgramNames heals an ordinary container whose processes call
// themselves what they like.
func TestInContainerProgramNames(t *testing.T) {
	n := harness.NewNode(t).Start()
	u := newUsed(n)
	for _, program := range []string{"virtiofsd", "qemu-system-x86", "runsc-sandbox", "exe"} {
		u.c.Pretend(program)
	}
	n.StartSandbox(harness.PodUID, "0123456789abcdef", "virtiofs-client") // no sandbox, for all its name
	u.die()
	n.Expect("healed", u.Request(), "replace-in-container")
	u.works()
	n.Expect("healthy", u.Request())
}

// TestInContainerBesideUnverified heals the volume everywhere else, again and again,
// while there is a container that cannot be inspected.
func TestInContainerBesideUnverified(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	s := newServed(n, "of both kinds")
	s.Publish(harness.OtherPod)
	hidden := n.StartUserContainer(harness.ContainerSpec{
		Pod: harness.OtherPod, Mounts: []harness.ContainerMount{{At: "/data", Source: s.MountPointOf(harness.OtherPod)}},
	})
	u := s.usedBy(harness.ContainerSpec{Mounts: []harness.ContainerMount{{At: "/data", Source: s.MountPoint()}}})
	other := s.Request()
	other.VolumePath = s.MountPointOf(harness.OtherPod)
	for range 3 {
		u.die()
		n.Expect("abnormal", other, "ContainerUnverified", "Done: replace")
		n.Expect("abnormal", u.Request(), "ContainerUnverified")
		u.works()
		s.unverified(hidden.ID()[:12])
	}
	s.Unpublish()
	n.Expect("abnormal", s.Request(), "NotMounted", "Done: rebind", "ContainerUnverified")
	u.works()
	hidden.Kill()
	n.Expect("healthy", u.Request())
}

// TestInContainerManyMounts names a container that has more mounts of the volume than
// are inspected. Those of other pods are healed.
func TestInContainerManyMounts(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	s := newServed(n, "mounted often")
	many := startManyMounts(s, "many", 70)
	u := s.usedBy(harness.ContainerSpec{Mounts: []harness.ContainerMount{{At: "/data", Source: s.MountPoint()}}})
	before := many.Mounts()
	u.die()
	n.Expect("abnormal", u.Request(), "replace-in-container", "ContainerUnverified")
	u.works()
	s.unverified(many.ID()[:12], "more mounts of the volume than are inspected")
	if after := many.Mounts(); !slices.EqualFunc(before, after, sameID) {
		t.Errorf("the container had %d mounts, and has %v", len(before), after)
	}
	many.Kill()
	n.Expect("healthy", u.Request())
}

// TestInContainerManyMountsInOnePod heals a pod in several rounds that has more mounts of
// the volume in all than are inspected.
func TestInContainerManyMountsInOnePod(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	s := newServed(n, "mounted often")
	var all []*harness.Container
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		all = append(all, startManyMounts(s, name, 60))
	}
	u := s.usedBy(harness.ContainerSpec{Mounts: []harness.ContainerMount{{At: "/data", Source: s.MountPoint()}}})
	u.die()
	n.Expect("healed", u.Request(), "replace-in-container")
	u.works()
	for _, c := range all {
		for _, m := range c.Mounts() {
			if m.FSType == "fuse.diskfs" && m.Dev != s.disk.Dev() {
				t.Errorf("a container has %v", m)
			}
		}
	}
	n.Expect("healthy", u.Request())
}

// startManyMounts starts a container of another pod that has bound its volume often.
func startManyMounts(s *served, name string, times int) *harness.Container {
	s.Node.T.Helper()
	if len(harness.Layers(s.Node.T, s.MountPointOf(harness.OtherPod))) == 0 {
		s.Publish(harness.OtherPod)
	}
	c := s.Node.StartContainer(harness.ContainerSpec{
		Pod: harness.OtherPod, Name: name, Mounts: []harness.ContainerMount{{At: "/data", Source: s.MountPointOf(harness.OtherPod)}},
	})
	c.InMounts(func() error { return bindOften("/data", times) })
	return c
}

// bindOften binds a mount to directories on a filesystem of their own.
func bindOften(mount string, times int) error {
	const on = "/dev"
	if err := unix.Mount("many", on, "tmpfs", 0, ""); err != nil {
		return err
	}
	for i := range times {
		at := filepath.Join(on, string(rune('A'+i/26))+string(rune('a'+i%26)))
		if err := unix.Mkdir(at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(mount, at, "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	return nil
}
