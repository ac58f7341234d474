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
	"google.golang.org/protobuf/encoding/protowire"

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

// csiStats asks how full a volume is, and returns usage and the condition for
// older callers.
func csiStats(t *testing.T, v *harness.Volume) (usage map[csi.VolumeUsage_Unit]*csi.VolumeUsage, condition string) {
	t.Helper()
	resp, err := csi.NewNodeClient(v.Node.Conn).NodeGetVolumeStats(within(t), &csi.NodeGetVolumeStatsRequest{VolumeId: v.ID, VolumePath: v.MountPoint()})
	if err != nil {
		t.Fatalf("NodeGetVolumeStats: %v\n%s", err, v.Node.Log)
	}
	usage = map[csi.VolumeUsage_Unit]*csi.VolumeUsage{}
	for _, u := range resp.GetUsage() {
		usage[u.GetUnit()] = u
	}
	return usage, string(resp.ProtoReflect().GetUnknown())
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
			usage, condition := csiStats(t, v)
			if !strings.Contains(condition, "healthy") {
				t.Errorf("condition %q", condition)
			}
			compareUsage(t, v, usage)
			n.SameTable(before)
		})
	}
}

// compareUsage compares with what statfs(2) says, or the size of the disk.
func compareUsage(t *testing.T, v *harness.Volume, usage map[csi.VolumeUsage_Unit]*csi.VolumeUsage) {
	t.Helper()
	bytes, inodes := usage[csi.VolumeUsage_BYTES], usage[csi.VolumeUsage_INODES]
	if v.FS == "block" {
		image, err := os.Stat(v.Image)
		harness.Must(t, err)
		if bytes.GetTotal() != image.Size() || len(usage) != 1 {
			t.Errorf("usage %v of a disk of %d bytes", usage, image.Size())
		}
		return
	}
	var st unix.Statfs_t
	harness.Must(t, unix.Statfs(v.MountPoint(), &st))
	if bytes.GetTotal() != int64(st.Blocks)*st.Frsize || bytes.GetAvailable() != int64(st.Bavail)*st.Frsize || bytes.GetUsed() != int64(st.Blocks-st.Bfree)*st.Frsize {
		t.Errorf("usage %v, statfs %+v", bytes, st)
	}
	if inodes.GetTotal() != int64(st.Files) || inodes.GetAvailable() != int64(st.Ffree) || inodes.GetUsed() != int64(st.Files-st.Ffree) {
		t.Errorf("usage %v, statfs %+v", inodes, st)
	}
	if bytes.GetTotal() == 0 || (inodes == nil) != (v.FS == "btrfs") {
		t.Errorf("usage %v", usage)
	}
}

// TestCSIOfSickVolumes breaks volumes and asks for them: each gets an answer, and
// nothing is changed.
func TestCSIOfSickVolumes(t *testing.T) {
	for name, c := range map[string]struct {
		volume func(n *harness.Node) (v *harness.Volume, breaks func())
		health string
		usage  bool
	}{
		"ext4 shut down": {func(n *harness.Node) (*harness.Volume, func()) {
			v := n.NewVolume("ext4", "shut down")
			return v, func() { shutdownSeen(t, v) }
		}, "INACCESSIBLE FilesystemShutdown", true},
		"FUSE daemon killed": {func(n *harness.Node) (*harness.Volume, func()) {
			v, fs := n.NewFUSEVolume("killed", faultfs.Config{})
			return v, fs.Kill
		}, "INACCESSIBLE Disconnected", false},
		"FUSE daemon wedged": {func(n *harness.Node) (*harness.Volume, func()) {
			v, fs := n.NewFUSEVolume("wedged", faultfs.Config{})
			return v, func() { fs.Hang() }
		}, "INACCESSIBLE NotResponding", false},
		"the bind is lost": {func(n *harness.Node) (*harness.Volume, func()) {
			v := n.NewVolume("ext4", "lost")
			return v, v.Unpublish
		}, "INACCESSIBLE NotMounted", false},
		"another filesystem is there": {func(n *harness.Node) (*harness.Volume, func()) {
			v := n.NewVolume("ext4", "covered")
			return v, func() { mountOver(v) }
		}, "INACCESSIBLE WrongVolumeMounted", false},
		"a disk that fails": {func(n *harness.Node) (*harness.Volume, func()) {
			v, fs := n.NewVolumeOnFaults("block", "failing")
			return v, func() { fs.Fail(unix.EIO, faultfs.Read) }
		}, "INACCESSIBLE DeviceReadError", true},
	} {
		t.Run(name, func(t *testing.T) {
			n := harness.NewNode(t, "--standalone", "--probe-timeout=1s").Start()
			next := newNeighbour(n)
			v, breaks := c.volume(n)
			n.Expect("healthy", v.Request())
			breaks()
			before, kept := n.Table(), files(t, n)
			for range 2 {
				if got := csiHealth(t, n, publishedHealth(v)); !slices.Contains(got, c.health) {
					t.Errorf("got %v, want %s", got, c.health)
				}
				usage, condition := csiStats(t, v)
				_, reason, _ := strings.Cut(c.health, " ")
				if name == "FUSE daemon wedged" {
					reason = "DaemonHung" // which stands before NotResponding, and the text is cut
				}
				if !strings.Contains(condition, "abnormal: ") || !strings.Contains(condition, reason) {
					t.Errorf("condition %q", condition)
				}
				if (len(usage) > 0) != c.usage {
					t.Errorf("usage %v", usage)
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

// TestCSIHealsNothing shows that only NodeHealer heals.
func TestCSIHealsNothing(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	v := n.NewVolume("ext4", "asked for")
	n.Expect("healthy", v.Request())
	v.Unpublish()
	before := n.Table()
	if got := csiHealth(t, n, publishedHealth(v)); !slices.Equal(got, []string{"INACCESSIBLE NotMounted"}) {
		t.Errorf("got %v", got)
	}
	csiStats(t, v)
	n.SameTable(before)
	n.Expect("healed", v.Request())
	if got := csiHealth(t, n, publishedHealth(v)); len(got) != 0 {
		t.Errorf("healed: %v", got)
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
	ask := func(id, mountPoint, staging string) (codes.Code, codes.Code) {
		_, health := client.NodeGetVolumeHealth(within(t), &csi.NodeGetVolumeHealthRequest{VolumeId: id, VolumePublishPath: mountPoint, StagingTargetPath: staging})
		_, stats := client.NodeGetVolumeStats(within(t), &csi.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: mountPoint, StagingTargetPath: staging})
		return status.Code(health), status.Code(stats)
	}
	nowhere := filepath.Join(n.Kubelet, "pods/none/volumes/kubernetes.io~csi/none/mount")
	for name, c := range map[string]struct {
		id, mountPoint, staging string
		health, stats           codes.Code
	}{
		"no such path":            {v.ID, nowhere, "", codes.NotFound, codes.NotFound},
		"staged, not published":   {v.ID, nowhere, v.Staging, codes.OK, codes.NotFound},
		"neither":                 {v.ID, nowhere, nowhere + "2", codes.NotFound, codes.NotFound},
		"the path of another one": {v.ID, other.MountPoint(), "", codes.NotFound, codes.NotFound},
		"no such volume":          {"none", "", "", codes.NotFound, codes.InvalidArgument},
		"outside":                 {v.ID, "/etc", "", codes.InvalidArgument, codes.InvalidArgument},
	} {
		if health, stats := ask(c.id, c.mountPoint, c.staging); health != c.health || stats != c.stats {
			t.Errorf("%s: got %v and %v, want %v and %v", name, health, stats, c.health, c.stats)
		}
	}
	v.Unpublish()
	call := n.BeginAndStop(v.Request())
	if health, stats := ask(v.ID, v.MountPoint(), v.Staging); health != codes.Aborted || stats != codes.Aborted {
		t.Errorf("beside a heal: got %v and %v", health, stats)
	}
	call.Resume()
	if a := call.Answer(); a == nil || a.GetAbnormal() {
		t.Errorf("the heal got %v", a)
	}
}

// TestCSIStorageHealth reports what two volumes have in common once a caller has asked
// for both, without touching them.
func TestCSIStorageHealth(t *testing.T) {
	n := harness.NewNode(t, "--standalone", "--probe-timeout=1s").Start()
	export := filepath.Join(n.Dir, "export")
	harness.Mkdir(t, export)
	fs := faultfs.Mount(t, export, faultfs.Config{})
	var volumes []*harness.Volume
	for _, id := range []string{"one part", "another part"} {
		volumes = append(volumes, n.NewStagedVolume("fuse", id, func(staging string) {
			harness.Must(t, unix.Mount(export, staging, "", unix.MS_BIND, ""))
		}))
	}
	storage := func() string {
		t.Helper()
		before := fs.Waiting()
		resp, err := csi.NewNodeClient(n.Conn).NodeGetStorageHealth(within(t), &csi.NodeGetStorageHealthRequest{})
		if err != nil || fs.Waiting() != before {
			t.Fatalf("NodeGetStorageHealth: %v; %d requests wait, %d before", err, fs.Waiting(), before)
		}
		var found []string
		for _, b := range resp.GetBackendHealth() {
			found = append(found, b.GetStatus().String()+" "+b.GetReason()+": "+b.GetMessage())
		}
		return strings.Join(found, "\n")
	}
	for _, v := range volumes {
		csiHealth(t, n, publishedHealth(v))
	}
	if got := storage(); got != "" {
		t.Errorf("all is well: %s", got)
	}
	fs.Hang()
	csiHealth(t, n, publishedHealth(volumes[0]))
	if got := storage(); got != "" {
		t.Errorf("one volume is ill: %s", got)
	}
	csiStats(t, volumes[1])
	if got := storage(); !strings.Contains(got, "STORAGE_UNREACHABLE NotResponding: 2 of 2 volumes on filesystem fuse") {
		t.Errorf("both are ill: %s", got)
	}
	fs.Kill()
	// A worker that was stuck is the answer until it ends.
	harness.Eventually(t, "the daemon is known to be gone", func() bool {
		for _, v := range volumes {
			csiHealth(t, n, publishedHealth(v))
		}
		return strings.Contains(storage(), "STORAGE_UNREACHABLE Disconnected: 2 of 2 volumes on FUSE daemons fuse")
	})
}

// TestCSIStatsAreFresh reads the usage before and after a write.
func TestCSIStatsAreFresh(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	v := n.NewVolume("ext4", "filling")
	before, _ := csiStats(t, v)
	harness.Must(t, os.WriteFile(filepath.Join(v.MountPoint(), "more"), make([]byte, 4<<20), 0o600))
	syncVolume(t, v)
	harness.Eventually(t, "what was written counts as used", func() bool {
		now, _ := csiStats(t, v)
		return now[csi.VolumeUsage_BYTES].GetUsed() >= before[csi.VolumeUsage_BYTES].GetUsed()+4<<20
	})
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

// TestCSIConditionOnTheWire decodes the condition as callers before CSI 1.13 do.
func TestCSIConditionOnTheWire(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	v := n.NewVolume("tmpfs", "lost")
	v.Unpublish()
	_, raw := csiStats(t, v)
	number, kind, size := protowire.ConsumeTag([]byte(raw))
	condition, _ := protowire.ConsumeBytes([]byte(raw)[max(size, 0):])
	if number != 2 || kind != protowire.BytesType || len(condition) < 2 || condition[0] != 1<<3 || condition[1] != 1 {
		t.Errorf("got %q", raw)
	}
}
