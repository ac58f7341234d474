package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/faultfs"
)

// csiHealth asks by csi.v1.Node how a volume is, and returns status and reason of
// each entry.
func csiHealth(t *testing.T, n *harness.Node, req *csi.NodeGetVolumeHealthRequest) []string {
	t.Helper()
	resp, err := csi.NewNodeClient(n.Conn).NodeGetVolumeHealth(within(t), req)
	if err != nil || resp.GetVolumeHealth().GetVolumeId() != req.GetVolumeId() {
		t.Fatalf("NodeGetVolumeHealth: %v, %v\n%s", resp, err, n.Log)
	}
	found := []string{}
	for _, e := range resp.GetVolumeHealth().GetHealthStatuses() {
		found = append(found, e.GetStatus().String()+" "+e.GetReason())
	}
	return found
}

func publishedHealth(v *harness.Volume) *csi.NodeGetVolumeHealthRequest {
	return &csi.NodeGetVolumeHealthRequest{VolumeId: v.ID, VolumePublishPath: v.MountPoint(), StagingTargetPath: v.StagedFile()}
}

// files lists what is in the server's state directory.
func files(t *testing.T, n *harness.Node) []string {
	t.Helper()
	var found []string
	harness.Must(t, filepath.Walk(n.StateDir(), func(path string, info os.FileInfo, err error) error {
		if err == nil {
			found = append(found, fmt.Sprint(path, " ", info.Size(), " ", info.ModTime()))
		}
		return err
	}))
	return found
}

// TestCSIOfHealthyVolumes asks for volumes of every kind in every way.
func TestCSIOfHealthyVolumes(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	for _, fs := range []string{"ext4", "xfs", "btrfs", "tmpfs", "block"} {
		t.Run(fs, func(t *testing.T) {
			v := n.NewVolume(fs, "csi "+fs)
			before := n.Table()
			for name, req := range map[string]*csi.NodeGetVolumeHealthRequest{
				"by both paths":       publishedHealth(v),
				"by its mount point":  {VolumeId: v.ID, VolumePublishPath: v.MountPoint()},
				"by its staging path": {VolumeId: v.ID, StagingTargetPath: v.StagedFile()},
				"by its ID":           {VolumeId: v.ID},
			} {
				if got := csiHealth(t, n, req); len(got) != 0 {
					t.Errorf("%s: %v", name, got)
				}
			}
			n.SameTable(before)
		})
	}
}

// TestCSIOfSickVolumes breaks volumes and asks for them: each gets an answer, and
// nothing is changed.
func TestCSIOfSickVolumes(t *testing.T) {
	for name, c := range map[string]struct {
		volume func(n *harness.Node) (v *harness.Volume, breaks func())
		health string
	}{
		"ext4 shut down": {func(n *harness.Node) (*harness.Volume, func()) {
			v := n.NewVolume("ext4", "shut down")
			return v, func() { shutdownSeen(t, v) }
		}, "INACCESSIBLE FilesystemShutdown"},
		"FUSE daemon killed": {func(n *harness.Node) (*harness.Volume, func()) {
			v, fs := n.NewFUSEVolume("killed", faultfs.Config{})
			return v, fs.Kill
		}, "INACCESSIBLE Disconnected"},
		"FUSE daemon wedged": {func(n *harness.Node) (*harness.Volume, func()) {
			v, fs := n.NewFUSEVolume("wedged", faultfs.Config{})
			return v, func() { fs.Hang() }
		}, "INACCESSIBLE NotResponding"},
		"the bind is lost": {func(n *harness.Node) (*harness.Volume, func()) {
			v := n.NewVolume("ext4", "lost")
			return v, v.Unpublish
		}, "INACCESSIBLE NotMounted"},
		"another filesystem is there": {func(n *harness.Node) (*harness.Volume, func()) {
			v := n.NewVolume("ext4", "covered")
			return v, func() { mountOver(v) }
		}, "INACCESSIBLE WrongVolumeMounted"},
		"a disk that fails": {func(n *harness.Node) (*harness.Volume, func()) {
			v, fs := n.NewVolumeOnFaults("block", "failing")
			return v, func() { fs.Fail(unix.EIO, faultfs.Read) }
		}, "INACCESSIBLE DeviceReadError"},
	} {
		t.Run(name, func(t *testing.T) {
			n := harness.NewNode(t, "--standalone", "--probe-timeout=3s").Start()
			next := newNeighbour(n)
			v, breaks := c.volume(n)
			n.Expect("healthy", v.Request())
			breaks()
			before, kept := n.Table(), files(t, n)
			for range 2 {
				if got := csiHealth(t, n, publishedHealth(v)); !slices.Contains(got, c.health) {
					t.Errorf("got %v, want %s", got, c.health)
				}
			}
			n.SameTable(before)
			if after := files(t, n); !slices.Equal(after, kept) {
				t.Errorf("a check wrote something down:\n%v\n%v", kept, after)
			}
			next.untouched()
		})
	}
}

// TestCSIOfADriverThatStagesNothing asks as kubelet does before a volume is published:
// at its staging path, and at a target that does not exist yet. Kubelet makes the
// staging directory, with its file, for all drivers.
func TestCSIOfADriverThatStagesNothing(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	v := n.NewVolume("tmpfs", "unstaged")
	harness.Must(t, unix.Unmount(v.Staging, 0))
	later := v.MountPointOf(harness.OtherPod)
	for range 2 {
		for name, req := range map[string]*csi.NodeGetVolumeHealthRequest{
			"the staging path":                 {VolumeId: v.ID, StagingTargetPath: v.Staging},
			"a mount point of later":           {VolumeId: v.ID, VolumePublishPath: later, StagingTargetPath: v.Staging},
			"the mount point, and the staging": {VolumeId: v.ID, VolumePublishPath: v.MountPoint(), StagingTargetPath: v.Staging},
		} {
			if got := csiHealth(t, n, req); len(got) != 0 {
				t.Errorf("%s: %v", name, got)
			}
		}
		atStaging := &healerpb.NodeHealerRequest{VolumeId: v.ID, VolumePath: v.Staging}
		if a, err := n.Call(atStaging); err != nil || a.GetAbnormal() || strings.Contains(a.GetMessage(), "staging "+v.Staging+" (") {
			t.Errorf("NodeHealer at the staging path: %v, %v", a, err)
		}
		if a, err := n.Call(v.Request()); err != nil || a.GetAbnormal() || strings.Contains(a.GetMessage(), "staging") {
			t.Errorf("NodeHealer: %v, %v", a, err)
		}
	}
}

// TestCSIFindsWhatIsLost asks by ID alone for volumes of which nothing is mounted any
// more, and that no call named before.
func TestCSIFindsWhatIsLost(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	next := newNeighbour(n)
	for _, fs := range []string{"ext4", "tmpfs"} {
		v := n.NewVolume(fs, "lost "+fs)
		harness.Must(t, unix.Unmount(v.Staging, 0))
		v.Unpublish()
		before := n.Table()
		if got := csiHealth(t, n, &csi.NodeGetVolumeHealthRequest{VolumeId: v.ID}); !slices.Equal(got, []string{"INACCESSIBLE NotMounted"}) {
			t.Errorf("%s: %v", fs, got)
		}
		n.SameTable(before)
	}
	next.untouched()
}

// TestCSIErrors covers the requests that cannot be answered.
func TestCSIErrors(t *testing.T) {
	n := harness.NewNode(t, "--standalone")
	n.Pause = "rebind/moved"
	n.Start()
	v, other := n.NewVolume("ext4", "one"), n.NewVolume("tmpfs", "another")
	n.Expect("healthy", v.Request())
	client := csi.NewNodeClient(n.Conn)
	ask := func(id, mountPoint, staging string) codes.Code {
		_, err := client.NodeGetVolumeHealth(within(t), &csi.NodeGetVolumeHealthRequest{VolumeId: id, VolumePublishPath: mountPoint, StagingTargetPath: staging})
		return status.Code(err)
	}
	nowhere := filepath.Join(n.Kubelet, "pods/none/volumes/kubernetes.io~csi/none/mount")
	for name, c := range map[string]struct {
		id, mountPoint, staging string
		want                    codes.Code
	}{
		"no such path":            {id: v.ID, mountPoint: nowhere, want: codes.NotFound},
		"staged, not published":   {id: v.ID, mountPoint: nowhere, staging: v.Staging, want: codes.OK},
		"neither":                 {id: v.ID, mountPoint: nowhere, staging: nowhere + "2", want: codes.NotFound},
		"the path of another one": {id: v.ID, mountPoint: other.MountPoint(), want: codes.NotFound},
		"no such volume":          {id: "none", want: codes.NotFound},
		"outside":                 {id: v.ID, mountPoint: "/etc", want: codes.InvalidArgument},
	} {
		if got := ask(c.id, c.mountPoint, c.staging); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
	v.Unpublish()
	call := n.BeginAndStop(v.Request())
	if got := ask(v.ID, v.MountPoint(), v.Staging); got != codes.Aborted {
		t.Errorf("beside a heal: got %v", got)
	}
	call.Resume()
	if a := call.Answer(); a == nil || a.GetAbnormal() {
		t.Errorf("the heal got %v", a)
	}
}

// TestCSIOfAServerThatIsOff returns the code that keeps callers from asking again.
func TestCSIOfAServerThatIsOff(t *testing.T) {
	n := harness.NewNode(t, "--standalone", "--mode=off").Start()
	v := n.NewVolume("tmpfs", "off")
	_, err := csi.NewNodeClient(n.Conn).NodeGetVolumeHealth(within(t), publishedHealth(v))
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("got %v", err)
	}
}
