package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/test/harness"
)

// emptyDir mounts a tmpfs where kubelet has an emptyDir of another pod.
func emptyDir(n *harness.Node) string {
	n.T.Helper()
	dir := filepath.Join(n.Kubelet, "pods", harness.OtherPod, "volumes/kubernetes.io~empty-dir/x")
	harness.Mkdir(n.T, dir)
	harness.Must(n.T, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"))
	return dir
}

// recordsOf reads what the server has on disk: the recorded paths by volume_id.
func recordsOf(n *harness.Node) map[string][]string {
	n.T.Helper()
	files, err := filepath.Glob(n.StateDir() + "/records/*.json")
	harness.Must(n.T, err)
	all := map[string][]string{}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		harness.Must(n.T, err)
		var r healer.Record
		harness.Must(n.T, json.Unmarshal(raw, &r))
		all[r.VolumeID] = []string{}
		for _, p := range r.MountPoints {
			all[r.VolumeID] = append(all[r.VolumeID], p.Path)
		}
	}
	return all
}

// TestNoRecordOfMadeUpVolumes calls for volumes that do not exist, at a path that
// works.
func TestNoRecordOfMadeUpVolumes(t *testing.T) {
	n := harness.NewNode(t).Start()
	dir := emptyDir(n)
	for i := range 30 {
		n.Expect("healthy", &healerpb.NodeHealerRequest{VolumeId: fmt.Sprint("made-up-", i), VolumePath: dir})
	}
	if all := recordsOf(n); len(all) != 0 {
		t.Errorf("%d records: %v", len(all), all)
	}
}

// TestFirstCheckOfTwoDisks calls for a volume that was published with another disk
// than it was staged with, before any check: nothing is known of either, and so
// neither is recorded.
func TestFirstCheckOfTwoDisks(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	for staged, published := range map[string]string{"ext4": "ext4", "btrfs": "xfs"} {
		v, other := n.NewVolume(staged, staged+" staged"), n.NewVolume(published, published+" published")
		v.Unpublish()
		harness.Must(t, unix.Mount(other.Staging, v.MountPoint(), "", unix.MS_BIND, ""))
		before := n.Table()
		for range 2 {
			n.Expect("abnormal", v.Request(), "WrongVolumeMounted", "it is not what is staged")
		}
		n.SameTable(before)
		if all := recordsOf(n); all[v.ID] != nil {
			t.Errorf("%s: recorded at %v", staged, all[v.ID])
		}
		harness.Must(t, unix.Unmount(v.MountPoint(), 0))
		v.PublishAgain()
		n.Expect("healthy", v.Request())
	}
}

// TestRecordTakesNoOtherMountPoint calls for a real volume with another pod's emptyDir
// for one of its paths.
func TestRecordTakesNoOtherMountPoint(t *testing.T) {
	for _, first := range []bool{false, true} {
		t.Run(fmt.Sprint("recorded before ", first), func(t *testing.T) {
			n := harness.NewNode(t).Start()
			v, dir := n.NewVolume("ext4", "real"), emptyDir(n)
			want := []string{v.Staging, v.MountPoint()}
			if first {
				n.Expect("healthy", v.Request())
			}
			for _, change := range []func(*healerpb.NodeHealerRequest){
				func(r *healerpb.NodeHealerRequest) { r.VolumePath = dir },
				func(r *healerpb.NodeHealerRequest) { r.VolumePath, r.StagingTargetPath = dir, "" },
				func(r *healerpb.NodeHealerRequest) { r.StagingTargetPath = dir },
				func(*healerpb.NodeHealerRequest) {},
			} {
				req := v.Request()
				change(req)
				if _, err := n.Call(req); err != nil {
					t.Fatal(err)
				}
				all := recordsOf(n)
				if slices.Contains(all[v.ID], dir) || len(all) > 1 || first && len(all[v.ID]) != len(want) {
					t.Errorf("after %v: %q", req, all)
				}
			}
			got := recordsOf(n)[v.ID]
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("recorded %q, want %q", got, want)
			}
		})
	}
}

// TestStandaloneRecordsWhatIsNamed records, where no kubelet is, the paths that the
// call names and no others.
func TestStandaloneRecordsWhatIsNamed(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	root := filepath.Join(n.Kubelet, "plain")
	staged, target, other := root+"/staged", root+"/target", root+"/other"
	for _, dir := range []string{staged, target, other} {
		harness.Mkdir(t, dir)
	}
	harness.Must(t, unix.Mount("tmpfs", staged, "tmpfs", 0, "size=1m"))
	for _, dir := range []string{target, other} {
		harness.Must(t, unix.Mount(staged, dir, "", unix.MS_BIND, ""))
	}
	n.Expect("healthy", &healerpb.NodeHealerRequest{VolumeId: "plain", VolumePath: target, StagingTargetPath: staged})
	got := recordsOf(n)["plain"]
	slices.Sort(got)
	if want := []string{staged, target}; !slices.Equal(got, want) {
		t.Errorf("recorded %q, want %q", got, want)
	}
}
