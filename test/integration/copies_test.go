package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
)

// TestCopies heals a mount point that other mount namespaces see too, as those of CSI
// drivers and agents: they get the mount point's own options.
func TestCopies(t *testing.T) {
	for _, propagation := range []string{"unchanged", "slave", "a server with a namespace of its own"} {
		t.Run(propagation, func(t *testing.T) {
			n := harness.NewNode(t, "--standalone")
			if n.Namespace = strings.HasPrefix(propagation, "a server"); n.Namespace {
				n.Args = append(n.Args, fmt.Sprintf("--host-mount-namespace=/proc/%d/ns/mnt", os.Getpid()))
				propagation = "slave"
			}
			n.Start()
			v := n.NewVolume("ext4", "seen from elsewhere")
			other := harness.NewNamespace(t, propagation)
			n.Expect("healthy", v.Request())
			before := other.At(v.MountPoint())
			v.Unpublish()
			if got := other.At(v.MountPoint()); len(got) != 0 {
				t.Fatalf("the umount did not propagate: %v", got)
			}
			n.Expect("healed", v.Request())
			if got := other.At(v.MountPoint()); fmt.Sprint(got) != fmt.Sprint(before) {
				t.Errorf("elsewhere the mount point is %v, before it was %v", got, before)
			}
		})
	}
}

// TestCopiesOutOfReach has another mount cover the way to the copy in another mount
// namespace. The volume works, and the answer says that one copy does not yet; a later
// call finishes it.
func TestCopiesOutOfReach(t *testing.T) {
	for name, volume := range map[string]func(*harness.Node) (v *harness.Volume, breaks func()){
		"rebind": func(n *harness.Node) (*harness.Volume, func()) {
			v := n.NewVolume("ext4", "seen from elsewhere")
			return v, v.Unpublish
		},
		"replace": func(n *harness.Node) (*harness.Volume, func()) {
			s := newServed(n, "seen from elsewhere")
			return s.Volume, s.die
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := harness.NewNode(t, "--standalone").Start()
			v, breaks := volume(n)
			other := harness.NewNamespace(t, "slave")
			n.Expect("healthy", v.Request())
			before, sum := other.At(v.MountPoint()), v.Sum(v.MountPoint())
			breaks()
			over := filepath.Join(n.Kubelet, "pods")
			other.Do("mount", "-t", "tmpfs", "over", over)
			for range 2 {
				n.Expect("abnormal", v.Request(), "other mount namespace")
				if v.Sum(v.MountPoint()) != sum {
					t.Error("the data differs")
				}
				v.Writable(v.MountPoint())
			}
			other.Do("umount", over)
			n.Expect("healed", v.Request())
			if got := other.At(v.MountPoint()); fmt.Sprint(got) != fmt.Sprint(before) {
				t.Errorf("elsewhere the mount point is %v, before it was %v", got, before)
			}
			n.Expect("healthy", v.Request())
		})
	}
}

// TestCopiesAfterAKill finalizes the copies with the next call.
func TestCopiesAfterAKill(t *testing.T) {
	var other harness.Namespace
	h := stopHealing(t, "ext4", "finalize/copies", func(v *harness.Volume) {
		other = harness.NewNamespace(t, "unchanged")
		v.Unpublish()
	})
	h.n.Kill()
	h.Answer()
	if got := other.At(h.v.MountPoint()); len(got) != 1 || !strings.HasPrefix(got[0], "ro,") {
		t.Fatalf("elsewhere the placeholder is %v", got)
	}
	h.restart()
	h.n.Expect("healed", h.v.Request())
	if got := other.At(h.v.MountPoint()); len(got) != 1 || !strings.HasPrefix(got[0], "rw,") {
		t.Errorf("elsewhere the mount point is %v", got)
	}
}

// TestCopyOnTheHost finalizes the copy at a second mount of kubelet's root too.
func TestCopyOnTheHost(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	second := filepath.Join(n.Dir, "second")
	harness.Mkdir(t, second)
	harness.Must(t, unix.Mount(n.Kubelet, second, "", unix.MS_BIND, ""))
	v := n.NewVolume("ext4", "seen twice")
	n.Expect("healthy", v.Request())
	before := n.Table()
	v.Unpublish()
	n.Expect("healed", v.Request())
	n.SameTable(before)
}

// TestContainerOfThePlaceholderMount starts a container with a read-only volume
// between the two halves of a rebind: its mount is independent of the host's, and not
// changed.
func TestContainerOfThePlaceholderMount(t *testing.T) {
	h := stopRebind(t, "ext4", "rebind/verified")
	c := h.n.NewContainer(harness.PodUID, h.v.MountPoint(), "rslave", "ro", "nosuid", "nodev")
	h.Resume()
	if a := h.Answer(); a == nil || a.GetAbnormal() {
		t.Fatalf("got %v", a)
	}
	out, err := c.Exec("cat", "/proc/self/mountinfo")
	harness.Must(t, err)
	for line := range strings.Lines(out) {
		if strings.Contains(line, " /data ") && !strings.Contains(line, " ro,nosuid,nodev") {
			t.Errorf("the container's read-only mount became %q", line)
		}
	}
	if out, err := c.Exec("touch", "/data/written"); err == nil {
		t.Errorf("the container can write to its read-only volume: %q", out)
	}
}

// TestCopiesOfAChrootedAgent finalizes the copies of an agent that runs in a chroot
// below which the host's root directory is mounted.
func TestCopiesOfAChrootedAgent(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	v := n.NewVolume("ext4", "seen by an agent")
	s := newServed(n, "seen by an agent too").known()
	n.Expect("healthy", v.Request())
	at := startAgent(t, n)
	before := at(v.MountPoint())
	for range 2 {
		v.Unpublish()
		n.Expect("healed", v.Request(), "rebind")
		s.die()
		n.Expect("healed", s.Request(), "replace")
		if got := at(v.MountPoint()); len(got) != 1 || fmt.Sprint(got) != fmt.Sprint(before) {
			t.Errorf("the agent has %v, before it had %v", got, before)
		}
		n.Expect("healthy", v.Request())
		n.Expect("healthy", s.Request())
	}
}

// startAgent starts a process in a mount namespace with a root directory of its own,
// and the host's beneath that, which the process changes to. at gives the attributes of
// the mounts at a path, as the process sees it.
func startAgent(t *testing.T, n *harness.Node) (at func(path string) []string) {
	t.Helper()
	root := filepath.Join(n.Dir, "agent")
	harness.Mkdir(t, root)
	cmd := exec.Command("unshare", "--mount", "--propagation", "slave", "sh", "-ec", `cd "$1"; mount -t tmpfs agent .; cd "$1"
		mkdir host old; cp /bin/busybox .; mount --rbind / host; mount --make-rslave host; pivot_root . old
		exec /busybox sh -c "/busybox umount -l /old; exec /busybox chroot /host sleep 100000"`, "sh", root)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	harness.Must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	harness.Eventually(t, "the agent runs", func() bool {
		comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", cmd.Process.Pid))
		return string(comm) == "sleep\n"
	})
	return func(path string) (found []string) {
		for _, m := range harness.Mounts(t, strconv.Itoa(cmd.Process.Pid)) {
			if m.Path == path {
				found = append(found, m.Attr.String())
			}
		}
		return found
	}
}
