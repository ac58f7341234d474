package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/faultfs"
)

// TestSeveralPods heals every target of a volume whose container still
// runs, whichever of them the request names.
func TestSeveralPods(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	v := n.NewVolume("ext4", "shared by pods")
	v.Publish(harness.OtherPod)
	n.Expect("healthy", v.Request(), harness.OtherPod)
	before := n.Table()

	c := n.NewContainer(harness.OtherPod, v.MountPointOf(harness.OtherPod))
	harness.Must(t, unix.Unmount(v.MountPointOf(harness.OtherPod), 0))
	n.Expect("healed", v.Request(), "NotMounted", harness.OtherPod)
	n.SameTable(before)

	// Without its container the other pod may be on its way out: the caller
	// vouches only for the mount point it names.
	c.Kill()
	harness.Must(t, unix.Unmount(v.MountPointOf(harness.OtherPod), 0))
	unmounted := n.Table()
	n.Expect("not judged", v.Request(), " is empty and nothing shows that it is wanted", "To do: ")
	n.SameTable(unmounted)

	// Named, it is healed: its record was kept.
	req := v.Request()
	req.VolumePath = v.MountPointOf(harness.OtherPod)
	n.Expect("healed", req, "NotMounted")
	n.SameTable(before)
}

// TestInlineVolumesOfOnePodName keeps inline volumes apart that share a
// directory name.
func TestInlineVolumesOfOnePodName(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	v, w := n.NewVolume("tmpfs", "inline-1"), n.NewVolume("tmpfs", "inline-2")
	// The second one is published for the other pod under the first one's name.
	w.PV = v.PV
	w.Publish(harness.OtherPod)
	n.Expect("healthy", v.Request())
	harness.Must(t, unix.Mount("tmpfs", w.MountPointOf(harness.OtherPod), "tmpfs", 0, ""))
	n.Expect("healthy", v.Request())
}

// TestDuplicate unmounts a placeholder from the driver's own mount, together with
// the copies that propagation made of it, and nothing else.
func TestDuplicate(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	v := n.NewVolume("ext4", "duplicated")
	v.Publish(harness.OtherPod)
	n.Expect("healthy", v.Request())
	before, sum := n.Table(), v.Sum(v.Staging)

	// What is left when the driver publishes in the microsecond in which a
	// rebind moves its clone, and the worker is killed right then.
	placeholderOn(t, v.Staging, v.MountPoint())
	if len(n.Table()) <= len(before)+1 {
		t.Fatal("the duplicate did not propagate: the test shows nothing")
	}
	n.Expect("healed", v.Request(), "StackedMounts", "unmount-duplicate")
	n.SameTable(before)
	if v.Sum(v.Staging) != sum {
		t.Error("the data differs")
	}
	n.Expect("healthy", v.Request())
}

// placeholderOn puts a placeholder on a target, as a rebind does.
func placeholderOn(t *testing.T, source, target string) {
	t.Helper()
	clone, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	harness.Must(t, err)
	defer unix.Close(clone)
	harness.Must(t, unix.MountSetattr(clone, "", unix.AT_EMPTY_PATH, &unix.MountAttr{
		Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV |
			unix.MOUNT_ATTR_NOEXEC | unix.MOUNT_ATTR_NOSYMFOLLOW,
		Propagation: unix.MS_PRIVATE,
	}))
	harness.Must(t, unix.MoveMount(clone, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH))
}

// TestKubeletRootIsALink takes requests by the link and by its target.
func TestKubeletRootIsALink(t *testing.T) {
	n := harness.NewNode(t)
	link := filepath.Join(n.Dir, "link")
	harness.Must(t, os.Symlink(n.Kubelet, link))
	n.Args = []string{"--standalone", "--kubelet-root=" + link}
	n.Start()
	v := n.NewVolume("ext4", "behind a link")
	byLink := v.Request()
	byLink.VolumePath = strings.Replace(byLink.GetVolumePath(), n.Kubelet, link, 1)
	byLink.StagingTargetPath = strings.Replace(byLink.GetStagingTargetPath(), n.Kubelet, link, 1)
	n.Expect("healthy", byLink)
	before := n.Table()
	v.Unpublish()
	n.Expect("healed", byLink, "NotMounted")
	n.SameTable(before)
	n.Expect("healthy", v.Request())
}

// TestPathRoot heals outside kubelet's directories, where no vol_data.json says
// anything.
func TestPathRoot(t *testing.T) {
	n := harness.NewNode(t)
	root := filepath.Join(n.Dir, "volumes")
	staging, target := filepath.Join(root, "staging"), filepath.Join(root, "target")
	harness.Mkdir(t, staging)
	harness.Mkdir(t, target)
	n.Args = []string{"--standalone", "--path-root=" + root}
	n.Start()
	harness.Must(t, unix.Mount("tmpfs", staging, "tmpfs", 0, "size=1m"))
	harness.Must(t, unix.Mount(staging, target, "", unix.MS_BIND, ""))
	before := n.Table()
	req := &healerpb.NodeHealerRequest{VolumeId: "elsewhere", VolumePath: target, StagingTargetPath: staging}
	n.Expect("healthy", req)
	harness.Must(t, unix.Unmount(target, 0))
	n.Expect("healed", req)
	n.SameTable(before)
}

// TestStagedOnly reports a staging path on which nothing is mounted when that is
// all that the request names.
func TestStagedOnly(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	v := n.NewVolume("ext4", "staged only")
	v.Unpublish()
	req := v.Request()
	req.VolumePath = req.GetStagingTargetPath()
	n.Expect("healthy", req) // what was never recorded there is not missed
	harness.Must(t, unix.Unmount(v.Staging, 0))
	n.Expect("abnormal", req, "StagingNotMounted")
	v.Stage()
	n.Expect("healthy", req)
}

// TestInContainerStaging takes a directory of the staged mount for a volume_path, as
// some drivers hand out, and sees what is wrong with the mount that it is in.
func TestInContainerStaging(t *testing.T) {
	n := harness.NewNode(t, "--standalone", "--probe-timeout=3s").Start()
	v := n.NewVolume("ext4", "inside")
	req := v.Request()
	req.VolumePath = v.Staging + "/sub"
	n.Expect("healthy", req)
	req.VolumePath = v.Staging + "/none"
	if _, err := n.Call(req); status.Code(err) != codes.NotFound {
		t.Errorf("a directory that is not there: %v", err)
	}
	f, fs := n.NewFUSEVolume("inside fuse", faultfs.Config{})
	f.Unpublish()
	req = f.Request()
	req.VolumePath = f.Staging + "/sub"
	fs.Hang()
	n.Expect("abnormal", req, "NotResponding")
	fs.Abort()
	harness.Eventually(t, "the worker of the call before is gone, and the volume is Disconnected", func() bool {
		return strings.Contains(n.Message(req), "Disconnected")
	})
}

// TestInContainerNestedMounts judges a path below the staging path by the mount that
// it is in, each time the same.
func TestInContainerNestedMounts(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	v := n.NewVolume("ext4", "nested")
	nested := filepath.Join(v.Staging, "sub")
	harness.Must(t, unix.Mount("tmpfs", nested, "tmpfs", 0, ""))
	harness.Mkdir(t, filepath.Join(nested, "dir"))
	for _, p := range []string{nested, filepath.Join(nested, "dir"), filepath.Join(v.Staging, "sub")} {
		req := v.Request()
		req.VolumePath = p
		for range 2 {
			n.Expect("healthy", req)
		}
		req.StagingTargetPath = ""
		n.Expect("healthy", req)
	}
}

// TestStagedBelow heals a volume whose driver stages below the path that it was
// given, whether or not the request names that path.
func TestStagedBelow(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	v := n.NewVolume("ext4", "staged below")
	v.Unpublish()
	harness.Must(t, unix.Unmount(v.Staging, 0))
	named := v.Request()
	v.Staging = filepath.Join(v.Staging, "0001")
	harness.Mkdir(t, v.Staging)
	v.Stage()
	v.PublishAgain()
	unnamed := v.Request()
	unnamed.StagingTargetPath = ""
	before := n.Table()
	for range 2 {
		n.Expect("healthy", named)
		v.Unpublish()
		n.Expect("healed", unnamed)
		v.Unpublish()
		n.Expect("healed", named)
		n.SameTable(before)
	}
}

// TestDeletedDirectory reports a mount point whose directory in the volume was
// deleted: what it shows still answers, and takes nothing any more.
func TestDeletedDirectory(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	v := n.NewVolume("ext4", "deleted")
	v.Unpublish()
	harness.Must(t, unix.Mount(filepath.Join(v.Staging, "sub"), v.MountPoint(), "", unix.MS_BIND, ""))
	n.Expect("healthy", v.Request())
	harness.Must(t, os.RemoveAll(filepath.Join(v.Staging, "sub")))
	n.Expect("abnormal", v.Request(), "StaleFileHandle", "deleted")
}

// TestTwoDriversOneHandle keeps the volumes of two drivers apart that use the
// same volume_id.
func TestTwoDriversOneHandle(t *testing.T) {
	n := harness.NewNode(t, "--standalone")
	n.AnyDriver = true
	n.Start()
	v := n.NewVolume("ext4", "same handle")
	n.Expect("healthy", v.Request())
	// The same handle, staged and published by another driver.
	p := filepath.Join(n.Kubelet, "pods", harness.OtherPod, "volumes/kubernetes.io~csi/pv-other/mount")
	harness.Mkdir(t, p)
	harness.Must(t, os.WriteFile(filepath.Join(filepath.Dir(p), "vol_data.json"),
		[]byte(`{"driverName":"other.csi.example.com","volumeHandle":"same handle"}`), 0o600))
	harness.Must(t, unix.Mount("tmpfs", p, "tmpfs", 0, ""))
	req := v.Request()
	req.VolumePath, req.StagingTargetPath = p, ""
	n.Expect("healthy", req)
	n.Expect("healthy", v.Request())
	harness.Must(t, unix.Unmount(p, 0))
	n.Expect("abnormal", req, "no staged mount")
	n.Expect("healthy", v.Request())
}
