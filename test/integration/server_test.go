package integration

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	csi "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/test/harness"
)

// TestRequests sees every error that a request for a real volume can get, and
// that nothing changes.
func TestRequests(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	v := n.NewVolume("ext4", "requested")
	raw := n.NewVolume("block", "requested raw")
	n.Expect("healthy", v.Request())
	n.Expect("healthy", raw.Request())
	before := n.Table()
	link := filepath.Join(n.Kubelet, "pods/link")
	harness.Must(t, os.Symlink(filepath.Join(n.Kubelet, "pods", harness.PodUID), link))
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
			r.VolumePath = strings.Replace(r.GetVolumePath(), harness.PodUID, "link", 1)
		}, codes.InvalidArgument, "symbolic link"},
		"no such path":   {func(r *healerpb.NodeHealerRequest) { r.VolumePath = n.Kubelet + "/pods/none/volumes" }, codes.NotFound, "volume_path"},
		"another volume": {func(r *healerpb.NodeHealerRequest) { r.VolumeId = "unknown" }, codes.NotFound, "another volume"},
		"block for a filesystem": {func(r *healerpb.NodeHealerRequest) {
			r.VolumeCapability = &csi.VolumeCapability{AccessMode: mode, AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}}
		}, codes.InvalidArgument, "volume_capability"},
		"another fs_type": {func(r *healerpb.NodeHealerRequest) {
			r.VolumeCapability = &csi.VolumeCapability{AccessMode: mode, AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "xfs"}}}
		}, codes.InvalidArgument, "fs_type"},
		"staged only": {func(r *healerpb.NodeHealerRequest) { r.VolumePath = r.GetStagingTargetPath() }, codes.OK, ""},
		"raw block by kubelet's link": {func(r *healerpb.NodeHealerRequest) {
			*r = healerpb.NodeHealerRequest{VolumeId: raw.ID, VolumePath: raw.PodLink(harness.PodUID)} //nolint:govet // a fresh message
		}, codes.OK, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := v.Request()
			c.change(r)
			a, err := n.Call(r)
			if status.Code(err) != c.code || (err != nil && !strings.Contains(err.Error(), c.says)) {
				t.Errorf("got %v %v, want %v with %q", a, err, c.code, c.says)
			}
			if err == nil && a.GetAbnormal() {
				t.Errorf("got %v", a)
			}
		})
	}
	n.SameTable(before)
	if log := n.Log.String(); strings.Contains(log, harness.Canary) {
		t.Errorf("a secret is in the log:\n%s", log)
	}
	noSecretsOnDisk(n)
}

// noSecretsOnDisk looks through the state directory and what /proc shows of
// the server.
func noSecretsOnDisk(n *harness.Node) {
	n.T.Helper()
	files, err := filepath.Glob(n.StateDir() + "/*")
	harness.Must(n.T, err)
	more, err := filepath.Glob(n.StateDir() + "/records/*")
	harness.Must(n.T, err)
	files = append(append(files, more...), fmt.Sprintf("/proc/%d/cmdline", n.PID()), fmt.Sprintf("/proc/%d/environ", n.PID()))
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if errors.Is(err, unix.EISDIR) {
			continue
		}
		harness.Must(n.T, err)
		if strings.Contains(string(raw), harness.Canary) {
			n.T.Errorf("a secret is in %s", f)
		}
	}
}

// TestModeOff answers UNIMPLEMENTED.
func TestModeOff(t *testing.T) {
	n := harness.NewNode(t, "--mode=off").Start()
	v := n.NewVolume("tmpfs", "off")
	if _, err := n.Call(v.Request()); status.Code(err) != codes.Unimplemented {
		t.Errorf("got %v", err)
	}
}

// TestTerminate lets a running step reach its end and takes no new one.
func TestTerminate(t *testing.T) {
	n := harness.NewNode(t, "--standalone")
	n.Pause = "rebind/moved"
	n.Start()
	v, other := n.NewVolume("ext4", "terminated"), n.NewVolume("ext4", "another")
	v.Publish(harness.OtherPod)
	n.Expect("healthy", v.Request())
	n.NewContainer(harness.OtherPod, v.MountPointOf(harness.OtherPod))
	before := n.Table()
	v.Unpublish()
	harness.Must(t, unix.Unmount(v.MountPointOf(harness.OtherPod), 0))
	call := n.BeginAndStop(v.Request())
	n.Terminate()
	harness.Eventually(t, "the signal arrives", func() bool { return strings.Contains(n.Log.String(), "Stopping") })
	// ABORTED by the server, or by gRPC once its socket is closed.
	harness.Eventually(t, "a new call is refused", func() bool {
		_, err := n.Call(other.Request())
		return status.Code(err) == codes.Aborted || status.Code(err) == codes.Unavailable
	})
	call.Resume()
	if a := call.Answer(); a == nil || !strings.Contains(a.GetMessage(), "Done: rebind of the target of pod") ||
		!strings.Contains(a.GetMessage(), "shutting down") {
		t.Errorf("the running call got %v", a)
	}
	if err := n.Wait(); err != nil {
		t.Errorf("the server ended with %v", err)
	}
	if after := n.Table(); len(after) != len(before)-1 {
		t.Errorf("of two lost binds one was to be healed before the end\nbefore: %v\nafter: %v", before, after)
	}
	if _, err := os.Stat(n.Socket()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left behind: %v", err)
	}
}

// TestTerminateCutsOff ends well even when a step does not come to its end; the
// next server heals from there.
func TestTerminateCutsOff(t *testing.T) {
	h := stopRebind(t, "ext4", "rebind/moved")
	h.n.Stop() // fails the test unless the exit code is 0
	h.Answer()
	h.restart()
	h.n.Expect("healed", h.v.Request(), "interrupted rebind")
	h.n.SameTable(h.healthy)
}

// TestSecondServer refuses to share a state directory, and a living socket.
func TestSecondServer(t *testing.T) {
	n := harness.NewNode(t).Start()
	for name, c := range map[string]struct{ endpoint, state, says string }{
		"state directory": {filepath.Join(n.Dir, "run2", "s.sock"), n.StateDir(), "in use by another node-healer"},
		"socket":          {n.Socket(), filepath.Join(n.Dir, "state2"), "socket"},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := exec.CommandContext(within(t), harness.Server(), "--endpoint=unix://"+c.endpoint,
				"--driver-name="+harness.Driver, "--kubelet-root="+n.Kubelet, "--state-dir="+c.state).CombinedOutput()
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
	n := harness.NewNode(t, "--standalone", fmt.Sprintf("--host-mount-namespace=/proc/%d/ns/mnt", os.Getpid()))
	n.Namespace = true
	n.Start()
	v := n.NewVolume("ext4", "elsewhere")
	sum := v.Sum(v.MountPoint())
	n.Expect("healthy", v.Request())
	before := n.Table()
	v.Unpublish()
	n.Expect("healed", v.Request(), "NotMounted")
	n.SameTable(before)
	if v.Sum(v.MountPoint()) != sum {
		t.Error("the data differs")
	}
}
