package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/host"
)

// TestCopies heals a place that is seen from other mount namespaces too, as from
// the pods of CSI drivers and of agents: they have it with its own options.
func TestCopies(t *testing.T) {
	for _, propagation := range []string{"unchanged", "slave"} {
		t.Run(propagation, func(t *testing.T) {
			n := newNode(t, "--standalone").start()
			v := n.newVolume("ext4", "seen from elsewhere")
			other := newNamespace(t, propagation)
			n.expect("healthy", v.request())
			before := other.at(v.place(podUID))
			v.unpublish()
			if got := other.at(v.place(podUID)); len(got) != 0 {
				t.Fatalf("the umount did not propagate: %v", got)
			}
			n.expect("healed", v.request())
			if got := other.at(v.place(podUID)); fmt.Sprint(got) != fmt.Sprint(before) {
				t.Errorf("elsewhere the place is %v, before it was %v", got, before)
			}
		})
	}
}

// TestCopiesAfterAKill settles the copies with the next call.
func TestCopiesAfterAKill(t *testing.T) {
	n := newNode(t, "--standalone")
	n.pause = "copies"
	n.start()
	v := n.newVolume("ext4", "seen from elsewhere")
	n.expect("healthy", v.request())
	other := newNamespace(t, "unchanged")
	v.unpublish()
	answered := n.asyncCall(v.request())
	n.stopped()
	n.kill()
	<-answered
	if got := other.at(v.place(podUID)); len(got) != 1 || !strings.HasPrefix(got[0], "ro,") {
		t.Fatalf("elsewhere the interim mount is %v", got)
	}
	n.pause = ""
	n.start()
	n.expect("healed", v.request())
	if got := other.at(v.place(podUID)); len(got) != 1 || !strings.HasPrefix(got[0], "rw,") {
		t.Errorf("elsewhere the place is %v", got)
	}
}

// TestCopyOnTheHost settles the copy at a second mount of kubelet's root too.
func TestCopyOnTheHost(t *testing.T) {
	n := newNode(t, "--standalone").start()
	second := filepath.Join(n.dir, "second")
	mkdir(t, second)
	must(t, unix.Mount(n.kubelet, second, "", unix.MS_BIND, ""))
	v := n.newVolume("ext4", "seen twice")
	n.expect("healthy", v.request())
	before := n.table()
	v.unpublish()
	n.expect("healed", v.request())
	n.sameTable(before)
}

// TestContainerOfTheInterimMount starts a container with a read-only volume
// while a rebind is between its halves: its mount has a life of its own.
func TestContainerOfTheInterimMount(t *testing.T) {
	n := newNode(t, "--standalone")
	n.pause = "place/verified"
	n.start()
	v := n.newVolume("ext4", "bound early")
	n.expect("healthy", v.request())
	v.unpublish()
	answered := n.asyncCall(v.request())
	worker := n.stopped()
	c := n.newContainer(podUID, v.place(podUID), "rslave", "ro", "nosuid", "nodev")
	resume(t, worker)
	if a := <-answered; a == nil || a.GetAbnormal() {
		t.Fatalf("got %v", a)
	}
	out, err := c.exec("cat", "/proc/self/mountinfo")
	must(t, err)
	for line := range strings.Lines(out) {
		if strings.Contains(line, " /data ") && !strings.Contains(line, " ro,nosuid,nodev") {
			t.Errorf("the container's read-only mount became %q", line)
		}
	}
	if out, err := c.exec("touch", "/data/written"); err == nil {
		t.Errorf("the container can write to its read-only volume: %q", out)
	}
}

// namespace is another mount namespace, with a process that keeps it.
type namespace struct {
	t   *testing.T
	pid int
}

func newNamespace(t *testing.T, propagation string) namespace {
	t.Helper()
	cmd := exec.Command("unshare", "--mount", "--propagation", propagation, "sleep", "100000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	eventually(t, "the other namespace is there", func() bool {
		comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", cmd.Process.Pid))
		return string(comm) == "sleep\n"
	})
	return namespace{t: t, pid: cmd.Process.Pid}
}

// at gives the attributes of the mounts at a path.
func (ns namespace) at(path string) []string {
	ns.t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/mountinfo", ns.pid))
	must(ns.t, err)
	defer f.Close()
	mounts, err := host.ParseMountinfo(f)
	must(ns.t, err)
	var found []string
	for _, m := range mounts {
		if m.Path == path {
			found = append(found, m.Attr.String())
		}
	}
	return found
}
