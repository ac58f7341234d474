package integration

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
	"github.com/csi-addons/node-healer/test/harness/csidriver"
	"github.com/csi-addons/node-healer/test/harness/faultfs"
)

// onNode is a person who asks as root on the node, as by kubectl exec.
type onNode struct {
	*person
	*harness.Node
}

func newOnNode(t *testing.T, args ...string) *onNode {
	t.Helper()
	p := &onNode{newPerson(t), harness.NewNode(t, args...)}
	p.arguments = []string{"--node=" + p.here.Name, "--kubelet-root=" + p.Kubelet, "--endpoint=unix://" + p.Socket()}
	return p
}

// uses creates the objects of a volume and of a pod that uses it here, and publishes it.
func (p *onNode) uses(v *harness.Volume, change ...func(*corev1.Pod)) *corev1.Pod {
	p.t.Helper()
	p.volume.PV, p.volume.ID = v.PV, v.ID
	p.api.Bind(p.t, p.volume)
	pod := p.pod("app", p.here.Name, change...)
	v.Publish(string(pod.UID))
	return pod
}

// eventually asks until the first cause is the one.
func (p *onNode) eventually(pod *corev1.Pod, reason string, has ...string) string {
	p.t.Helper()
	harness.Eventually(p.t, reason, func() bool {
		text, _ := p.ask("pod/" + pod.Name)
		return strings.Contains(text, "\n"+reason+": ")
	})
	return p.says("pod/"+pod.Name, reason, has...)
}

// TestWhyMountHangs stops a daemon under a mount, as a driver's that binds from a FUSE mount.
func TestWhyMountHangs(t *testing.T) {
	p := newOnNode(t)
	v, disk := p.NewFUSEDisk("hangs", harness.FUSEConfig{})
	pod := p.uses(v)
	disk.Freeze()
	target := v.MountPointOf(string(pod.UID))
	cmd := exec.Command("mount", "--bind", filepath.Join(v.Staging, "no-such-name"), target)
	harness.Must(t, cmd.Start())
	t.Cleanup(func() { disk.Thaw(); _ = cmd.Wait() })
	text := p.eventually(pod, "MountHangs", "mount (process ", "in request_wait_answer", target, "1. a FUSE daemon does not answer")
	if strings.Contains(text, "kubectl exec -n") {
		t.Error("this is the node:\n" + text)
	}
	// It is the trouble of this pod, and of no other.
	other := p.pod("other", p.here.Name, running, func(pod *corev1.Pod) { pod.Spec.Volumes = nil; pod.Spec.Containers[0].VolumeMounts = nil })
	p.says("pod/"+other.Name, "OtherMountHangs", target)
}

// TestWhyProcessHangs has a container write to a frozen filesystem, and deletes its pod.
func TestWhyProcessHangs(t *testing.T) {
	p := newOnNode(t)
	v := p.NewVolume("ext4", "frozen")
	pod := p.uses(v, running)
	c := p.NewContainer(string(pod.UID), v.MountPointOf(string(pod.UID)))
	thaw := v.Freeze()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = c.Exec("touch", "/data/new")
	}()
	t.Cleanup(func() { thaw(); <-ended })
	cluster.Terminate(t, p.api, pod)
	p.eventually(pod, "ProcessHangs", "state D", "percpu_rwsem_wait", "1. the filesystem may be frozen: see whether a snapshot", "fsfreeze --unfreeze")
}

// TestWhyBusy has a container write to a slow disk all the time: one process waits in nearly
// every instant, and does not hang.
func TestWhyBusy(t *testing.T) {
	p := newOnNode(t)
	v, disk := p.NewVolumeOnFaults("ext4", "busy")
	pod := p.uses(v, running)
	c := p.NewContainer(string(pod.UID), v.MountPointOf(string(pod.UID)))
	// Far shorter than the second between two looks, also where the disk's daemon waits for a processor.
	disk.Delay(20*time.Millisecond, faultfs.Write)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = c.Exec("dd", "if=/dev/zero", "of=/data/busy", "bs=4096", "count=1000000", "oflag=direct")
	}()
	t.Cleanup(func() { disk.Lift(); c.Kill(); <-ended })
	before := disk.Requests(faultfs.Write)
	harness.Eventually(t, "the container writes", func() bool { return disk.Requests(faultfs.Write) > before+3 })
	judged := 0
	harness.Eventually(t, "three answers while the container writes", func() bool {
		pause := longestPause(disk)
		text, _ := p.ask("pod/" + pod.Name)
		stood, hangs := pause(), strings.Contains(text, "ProcessHangs: ")
		if hangs && stood > 500*time.Millisecond {
			return false // a busy machine kept the container or its disk from a processor: that does hang
		}
		if hangs {
			t.Error(text)
		}
		judged++
		return judged == 3
	})
}

// longestPause watches a disk and returns what ends that, and tells for how long no write came.
func longestPause(disk *faultfs.FS) (end func() time.Duration) {
	stop, longest := make(chan struct{}), make(chan time.Duration)
	go func() {
		var most time.Duration
		seen, since := disk.Requests(faultfs.Write), time.Now()
		for {
			select {
			case <-stop:
				longest <- max(most, time.Since(since))
				return
			case <-time.After(10 * time.Millisecond):
			}
			if now := disk.Requests(faultfs.Write); now != seen {
				most = max(most, time.Since(since))
				seen, since = now, time.Now()
			}
		}
	}()
	return func() time.Duration {
		close(stop)
		return <-longest
	}
}

// TestWhyDriverSilent stops a driver, and has nobody listen at its socket.
func TestWhyDriverSilent(t *testing.T) {
	p := newOnNode(t)
	d := p.NewCSIDriver(csidriver.Mode{})
	p.api.Bind(t, p.volume)
	pod := p.pod("app", p.here.Name, running)
	if text, code := p.ask("pod/" + pod.Name); strings.Contains(text, "\nDriverSilent: ") {
		t.Errorf("%d %s", code, text)
	}
	d.Stop()
	_ = os.Remove(d.Socket())
	l, err := net.Listen("unix", d.Socket())
	harness.Must(t, err)
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	p.says("pod/"+pod.Name, "DriverSilent", harness.Driver, "does not answer at "+d.Socket(), "see the driver's pod", "before its pod is restarted")
	harness.Must(t, l.Close())
	p.says("pod/"+pod.Name, "DriverSilent", "connection refused")
}

// TestWhyLeftovers leaves directories of pods that are gone.
func TestWhyLeftovers(t *testing.T) {
	p := newOnNode(t)
	v := p.NewVolume("tmpfs", "left")
	pod := p.uses(v, running)
	static := cluster.Create(t, p.api, cluster.Pod(p.namespace, "static", p.here.Name))
	mirror := "5a71c000" + harness.UnrelatedPod[8:]
	cluster.Change(t, p.api, static, func(s *corev1.Pod) { s.Annotations = map[string]string{"kubernetes.io/config.hash": mirror} })
	harness.Mkdir(t, filepath.Join(p.Kubelet, "pods", mirror))
	harness.Mkdir(t, filepath.Join(p.Kubelet, "pods", harness.UnrelatedPod, "volumes"))
	text := p.says("pod/"+pod.Name, "Leftovers", "remove nothing", "journalctl -u kubelet")
	if strings.Contains(text, mirror) || !strings.Contains(text, v.MountPoint()+" (tmpfs)") ||
		!strings.Contains(text, ", a volume of this pod") || !strings.Contains(text, harness.UnrelatedPod+", with nothing mounted in it") {
		t.Error(text)
	}
	cluster.Delete(t, p.api, pod)
	p.says("pod/"+pod.Name, "Leftovers", string(pod.UID))
	p.arguments = append(p.arguments, "--node=no-such-node")
	if text, code := p.ask("pod/" + pod.Name); code != 3 || strings.Contains(text, "Leftovers") || !strings.Contains(text, "--node") {
		t.Errorf("exit code %d: %s", code, text)
	}
}

// TestWhyStillMounted has a pod end whose volume kubelet does not unmount.
func TestWhyStillMounted(t *testing.T) {
	p := newOnNode(t)
	v := p.NewVolume("tmpfs", "mounted")
	pod := p.uses(v, running)
	cluster.Terminate(t, p.api, pod)
	cluster.Change(t, p.api, pod, func(pod *corev1.Pod) {
		pod.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 0}}
	})
	p.says("pod/"+pod.Name, "StillMounted", v.MountPointOf(string(pod.UID)), "journalctl -u kubelet | grep "+string(pod.UID))
}

// TestWhyUnhealthyHere has the node's own loop find a dead daemon.
func TestWhyUnhealthyHere(t *testing.T) {
	p := newOnNode(t, "--standalone", "--loop=observe")
	p.Start()
	v, disk := p.NewFUSEDisk("dead", harness.FUSEConfig{})
	pod := p.uses(v, running)
	disk.Kill()
	p.eventually(pod, "VolumeUnhealthy", "on this node: abnormal: Disconnected", "1. healerctl heal --driver="+harness.Driver)
}
