package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	csi "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
)

// TestRequests sees every error that a request for a real volume can get, and
// that nothing changes.
func TestRequests(t *testing.T) {
	n := newNode(t, "--standalone").start()
	v := n.newVolume("ext4", "requested")
	raw := n.newVolume("block", "requested raw")
	n.expect("healthy", v.request())
	n.expect("healthy", raw.request())
	before := n.table()
	link := filepath.Join(n.kubelet, "pods/link")
	must(t, os.Symlink(filepath.Join(n.kubelet, "pods", podUID), link))
	mode := &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER}
	for name, c := range map[string]struct {
		change func(r *healerpb.NodeHealerRequest)
		code   codes.Code
		says   string
	}{
		"no volume_id":   {func(r *healerpb.NodeHealerRequest) { r.VolumeId = "" }, codes.InvalidArgument, "volume_id"},
		"no volume_path": {func(r *healerpb.NodeHealerRequest) { r.VolumePath = "" }, codes.InvalidArgument, "volume_path"},
		"outside":        {func(r *healerpb.NodeHealerRequest) { r.VolumePath = "/etc" }, codes.InvalidArgument, "volume_path"},
		"dots":           {func(r *healerpb.NodeHealerRequest) { r.VolumePath += "/../mount" }, codes.InvalidArgument, "volume_path"},
		"a link on the way": {func(r *healerpb.NodeHealerRequest) {
			r.VolumePath = strings.Replace(r.GetVolumePath(), podUID, "link", 1)
		}, codes.InvalidArgument, "symbolic link"},
		"no such path":   {func(r *healerpb.NodeHealerRequest) { r.VolumePath = n.kubelet + "/pods/none/volumes" }, codes.NotFound, "volume_path"},
		"another volume": {func(r *healerpb.NodeHealerRequest) { r.VolumeId = "unknown" }, codes.NotFound, "another volume"},
		"block for a filesystem": {func(r *healerpb.NodeHealerRequest) {
			r.VolumeCapability = &csi.VolumeCapability{AccessMode: mode, AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}}
		}, codes.InvalidArgument, "volume_capability"},
		"another fs_type": {func(r *healerpb.NodeHealerRequest) {
			r.VolumeCapability = &csi.VolumeCapability{AccessMode: mode, AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "xfs"}}}
		}, codes.InvalidArgument, "fs_type"},
		"staged only": {func(r *healerpb.NodeHealerRequest) { r.VolumePath = r.GetStagingTargetPath() }, codes.OK, ""},
		"raw block by kubelet's link": {func(r *healerpb.NodeHealerRequest) {
			*r = healerpb.NodeHealerRequest{VolumeId: raw.id, VolumePath: raw.podLink(podUID)} //nolint:govet // a fresh message
		}, codes.OK, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := v.request()
			c.change(r)
			a, err := n.call(r)
			if status.Code(err) != c.code || (err != nil && !strings.Contains(err.Error(), c.says)) {
				t.Errorf("got %v %v, want %v with %q", a, err, c.code, c.says)
			}
			if err == nil && a.GetAbnormal() {
				t.Errorf("got %v", a)
			}
		})
	}
	n.sameTable(before)
	if log := n.log.String(); strings.Contains(log, canary) {
		t.Errorf("a secret is in the log:\n%s", log)
	}
	n.noSecretsOnDisk()
}

// noSecretsOnDisk looks through the state directory and what /proc shows of
// the server.
func (n *node) noSecretsOnDisk() {
	n.t.Helper()
	files, err := filepath.Glob(n.stateDir() + "/*")
	must(n.t, err)
	more, err := filepath.Glob(n.stateDir() + "/records/*")
	must(n.t, err)
	files = append(append(files, more...), fmt.Sprintf("/proc/%d/cmdline", n.server.Process.Pid), fmt.Sprintf("/proc/%d/environ", n.server.Process.Pid))
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if errors.Is(err, unix.EISDIR) {
			continue
		}
		must(n.t, err)
		if strings.Contains(string(raw), canary) {
			n.t.Errorf("a secret is in %s", f)
		}
	}
}

// TestModeOff answers UNIMPLEMENTED.
func TestModeOff(t *testing.T) {
	n := newNode(t, "--mode=off").start()
	v := n.newVolume("tmpfs", "off")
	if _, err := n.call(v.request()); status.Code(err) != codes.Unimplemented {
		t.Errorf("got %v", err)
	}
}

// TestTerminate lets a running step reach its end and takes no new one.
func TestTerminate(t *testing.T) {
	n := newNode(t, "--standalone")
	n.pause = "place/moved"
	n.start()
	v, other := n.newVolume("ext4", "terminated"), n.newVolume("ext4", "another")
	v.publish(otherPod)
	n.expect("healthy", v.request())
	n.newContainer(otherPod, v.place(otherPod))
	before := n.table()
	v.unpublish()
	must(t, unix.Unmount(v.place(otherPod), 0))
	answered := n.asyncCall(v.request())
	worker := n.stopped()
	must(t, n.server.Process.Signal(syscall.SIGTERM))
	eventually(t, "the signal arrives", func() bool { return strings.Contains(n.log.String(), "Stopping") })
	if _, err := n.call(other.request()); status.Code(err) != codes.Unavailable {
		t.Errorf("a new call while stopping got %v", err)
	}
	resume(t, worker)
	if a := <-answered; a == nil || !strings.Contains(a.GetMessage(), "Done: rebind of published") ||
		!strings.Contains(a.GetMessage(), "shutting down") {
		t.Errorf("the running call got %v", a)
	}
	if err := n.wait(); err != nil {
		t.Errorf("the server ended with %v", err)
	}
	if after := n.table(); len(after) != len(before)-1 {
		t.Errorf("of two lost binds one was to be healed before the end\nbefore: %v\nafter: %v", before, after)
	}
	if _, err := os.Stat(n.socket()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left behind: %v", err)
	}
}

// TestTerminateCutsOff ends well even when a step does not come to its end; the
// next server heals from there.
func TestTerminateCutsOff(t *testing.T) {
	n := newNode(t, "--standalone")
	n.pause = "place/moved"
	n.start()
	v := n.newVolume("ext4", "cut off")
	n.expect("healthy", v.request())
	before := n.table()
	v.unpublish()
	answered := n.asyncCall(v.request())
	n.stopped()
	n.stop() // fails the test unless the exit code is 0
	<-answered
	n.pause = ""
	n.start()
	n.expect("healed", v.request(), "interrupted rebind")
	n.sameTable(before)
}

// TestSecondServer refuses to share a state directory, and a living socket.
func TestSecondServer(t *testing.T) {
	n := newNode(t).start()
	for name, c := range map[string]struct{ endpoint, state, says string }{
		"state directory": {filepath.Join(n.dir, "run2", "s.sock"), n.stateDir(), "in use by another node-healer"},
		"socket":          {n.socket(), filepath.Join(n.dir, "state2"), "socket"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			out, err := exec.CommandContext(ctx, filepath.Join(bin, "node-healer"), "--endpoint=unix://"+c.endpoint,
				"--driver-name="+driver, "--kubelet-root="+n.kubelet, "--state-dir="+c.state).CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(out), c.says) {
				t.Errorf("got %v %s", err, out)
			}
		})
	}
}

// TestOtherNamespace runs the server in a mount namespace that sees none of the
// volumes, as a pod without mount propagation would: it works in the host's.
func TestOtherNamespace(t *testing.T) {
	n := newNode(t, "--standalone", fmt.Sprintf("--host-mount-namespace=/proc/%d/ns/mnt", os.Getpid()))
	n.namespace = true
	n.start()
	v := n.newVolume("ext4", "elsewhere")
	sum := v.sum(v.place(podUID))
	n.expect("healthy", v.request())
	before := n.table()
	v.unpublish()
	n.expect("healed", v.request(), "NotMounted")
	n.sameTable(before)
	if v.sum(v.place(podUID)) != sum {
		t.Error("the data differs")
	}
}

// callAndLeave calls, and gives a function that takes the caller away.
func (n *node) callAndLeave(req *healerpb.NodeHealerRequest) (leave func()) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = healerpb.NewHealerNodeClient(n.conn).NodeHealer(ctx, req)
	}()
	return func() { cancel(); <-done }
}

// resume lets a stopped worker go on.
func resume(t *testing.T, worker int) {
	t.Helper()
	must(t, unix.Kill(worker, unix.SIGCONT))
}
