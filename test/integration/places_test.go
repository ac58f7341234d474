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
)

const otherPod = "0d1c5a2e-0000-4000-8000-000000000002"

// TestSeveralPods heals every published place of a volume whose container still
// runs, whichever of them the request names.
func TestSeveralPods(t *testing.T) {
	n := newNode(t, "--standalone").start()
	v := n.newVolume("ext4", "shared by pods")
	v.publish(otherPod)
	n.expect("healthy", v.request(), otherPod)
	before := n.table()

	c := n.newContainer(otherPod, v.place(otherPod))
	must(t, unix.Unmount(v.place(otherPod), 0))
	n.expect("healed", v.request(), "NotMounted", otherPod)
	n.sameTable(before)

	// Without its container the other pod may be on its way out: the caller
	// vouches only for the place it names.
	c.kill()
	must(t, unix.Unmount(v.place(otherPod), 0))
	unmounted := n.table()
	n.expect("healthy", v.request())
	n.sameTable(unmounted)

	// Named, it is healed: its record was kept.
	req := v.request()
	req.VolumePath = v.place(otherPod)
	n.expect("healed", req, "NotMounted")
	n.sameTable(before)
}

// TestInlineVolumesOfOnePodName keeps inline volumes apart that share a
// directory name.
func TestInlineVolumesOfOnePodName(t *testing.T) {
	n := newNode(t, "--standalone").start()
	v, w := n.newVolume("tmpfs", "inline-1"), n.newVolume("tmpfs", "inline-2")
	// The second one is published for the other pod under the first one's name.
	w.pv = v.pv
	w.publish(otherPod)
	n.expect("healthy", v.request())
	must(t, unix.Mount("tmpfs", w.place(otherPod), "tmpfs", 0, ""))
	n.expect("healthy", v.request())
}

// TestDuplicate takes an interim mount off the driver's own mount, together with
// the copies that propagation made of it, and nothing else.
func TestDuplicate(t *testing.T) {
	n := newNode(t, "--standalone").start()
	v := n.newVolume("ext4", "duplicated")
	v.publish(otherPod)
	n.expect("healthy", v.request())
	before, sum := n.table(), v.sum(v.staging)

	// What is left when the driver publishes in the microsecond in which a
	// rebind moves its clone, and the worker is killed right then.
	n.interimOn(v.staging, v.place(podUID))
	if len(n.table()) <= len(before)+1 {
		t.Fatal("the duplicate did not propagate: the test shows nothing")
	}
	n.expect("healed", v.request(), "StackedMounts", "take-off-duplicate")
	n.sameTable(before)
	if v.sum(v.staging) != sum {
		t.Error("the data differs")
	}
	n.expect("healthy", v.request())
}

// interimOn puts an interim mount on a target, as a rebind does.
func (n *node) interimOn(source, target string) {
	n.t.Helper()
	clone, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	must(n.t, err)
	defer unix.Close(clone)
	must(n.t, unix.MountSetattr(clone, "", unix.AT_EMPTY_PATH, &unix.MountAttr{
		Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV |
			unix.MOUNT_ATTR_NOEXEC | unix.MOUNT_ATTR_NOSYMFOLLOW,
		Propagation: unix.MS_PRIVATE,
	}))
	must(n.t, unix.MoveMount(clone, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH))
}

// TestKubeletRootIsALink takes requests by the link and by its target.
func TestKubeletRootIsALink(t *testing.T) {
	n := newNode(t)
	link := filepath.Join(n.dir, "link")
	must(t, os.Symlink(n.kubelet, link))
	n.args = []string{"--standalone", "--kubelet-root=" + link}
	n.start()
	v := n.newVolume("ext4", "behind a link")
	byLink := v.request()
	byLink.VolumePath = strings.Replace(byLink.GetVolumePath(), n.kubelet, link, 1)
	byLink.StagingTargetPath = strings.Replace(byLink.GetStagingTargetPath(), n.kubelet, link, 1)
	n.expect("healthy", byLink)
	before := n.table()
	v.unpublish()
	n.expect("healed", byLink, "NotMounted")
	n.sameTable(before)
	n.expect("healthy", v.request())
}

// TestPathRoot heals outside kubelet's directories, where no vol_data.json says
// anything.
func TestPathRoot(t *testing.T) {
	n := newNode(t)
	root := filepath.Join(n.dir, "volumes")
	staging, target := filepath.Join(root, "staged"), filepath.Join(root, "published")
	mkdir(t, staging)
	mkdir(t, target)
	n.args = []string{"--standalone", "--path-root=" + root}
	n.start()
	must(t, unix.Mount("tmpfs", staging, "tmpfs", 0, "size=1m"))
	must(t, unix.Mount(staging, target, "", unix.MS_BIND, ""))
	before := n.table()
	req := &healerpb.NodeHealerRequest{VolumeId: "elsewhere", VolumePath: target, StagingTargetPath: staging}
	n.expect("healthy", req)
	must(t, unix.Unmount(target, 0))
	n.expect("healed", req)
	n.sameTable(before)
}

// TestStagedOnly reports a staging path on which nothing is mounted when that is
// all that the request names.
func TestStagedOnly(t *testing.T) {
	n := newNode(t, "--standalone").start()
	v := n.newVolume("ext4", "staged only")
	v.unpublish()
	req := v.request()
	req.VolumePath = req.GetStagingTargetPath()
	must(t, unix.Unmount(v.staging, 0))
	n.expect("abnormal", req, "NotMounted")
	v.stage()
	n.expect("healthy", req)
}

// TestInsideStaging takes a directory of the staged mount for a volume_path, as
// some drivers hand out, and sees what is wrong with the mount that it is in.
func TestInsideStaging(t *testing.T) {
	n := newNode(t, "--standalone", "--probe-timeout=1s").start()
	v := n.newVolume("ext4", "inside")
	req := v.request()
	req.VolumePath = v.staging + "/sub"
	n.expect("healthy", req)
	req.VolumePath = v.staging + "/none"
	if _, err := n.call(req); status.Code(err) != codes.NotFound {
		t.Errorf("a directory that is not there: %v", err)
	}
	f := n.newVolume("tmpfs", "inside fuse")
	f.unpublish()
	must(t, unix.Unmount(f.staging, 0))
	d := mountFuse(t, f.staging)
	req = f.request()
	req.VolumePath = f.staging + "/sub"
	d.mute.Store(true)
	n.expect("abnormal", req, "NotResponding")
	d.abort()
	n.expect("abnormal", req, "Disconnected")
}

// TestInsideNestedMounts judges a path below the staging path by the mount that
// it is in, each time the same.
func TestInsideNestedMounts(t *testing.T) {
	n := newNode(t, "--standalone").start()
	v := n.newVolume("ext4", "nested")
	nested := filepath.Join(v.staging, "sub")
	must(t, unix.Mount("tmpfs", nested, "tmpfs", 0, ""))
	mkdir(t, filepath.Join(nested, "dir"))
	for _, p := range []string{nested, filepath.Join(nested, "dir"), filepath.Join(v.staging, "sub")} {
		req := v.request()
		req.VolumePath = p
		for range 2 {
			n.expect("healthy", req)
		}
		req.StagingTargetPath = ""
		n.expect("healthy", req)
	}
}

// TestStagedBelow heals a volume whose driver stages below the path that it was
// given, whether or not the request names that path.
func TestStagedBelow(t *testing.T) {
	n := newNode(t, "--standalone").start()
	v := n.newVolume("ext4", "staged below")
	v.unpublish()
	must(t, unix.Unmount(v.staging, 0))
	named := v.request()
	v.staging = filepath.Join(v.staging, "0001")
	mkdir(t, v.staging)
	v.stage()
	v.publishAgain()
	unnamed := v.request()
	unnamed.StagingTargetPath = ""
	before := n.table()
	for range 2 {
		n.expect("healthy", named)
		v.unpublish()
		n.expect("healed", unnamed)
		v.unpublish()
		n.expect("healed", named)
		n.sameTable(before)
	}
}

// TestDeletedDirectory reports a place whose directory in the volume was
// deleted: what it shows still answers, and takes nothing any more.
func TestDeletedDirectory(t *testing.T) {
	n := newNode(t, "--standalone").start()
	v := n.newVolume("ext4", "deleted")
	v.unpublish()
	must(t, unix.Mount(filepath.Join(v.staging, "sub"), v.place(podUID), "", unix.MS_BIND, ""))
	n.expect("healthy", v.request())
	must(t, os.RemoveAll(filepath.Join(v.staging, "sub")))
	n.expect("abnormal", v.request(), "StaleFileHandle", "deleted")
}

// TestTwoDriversOneHandle keeps the volumes of two drivers apart that use the
// same volume_id.
func TestTwoDriversOneHandle(t *testing.T) {
	n := newNode(t, "--standalone").start()
	v := n.newVolume("ext4", "same handle")
	n.expect("healthy", v.request())
	// The same handle, staged and published by another driver.
	p := filepath.Join(n.kubelet, "pods", otherPod, "volumes/kubernetes.io~csi/pv-other/mount")
	mkdir(t, p)
	must(t, os.WriteFile(filepath.Join(filepath.Dir(p), "vol_data.json"),
		[]byte(`{"driverName":"other.csi.example.com","volumeHandle":"same handle"}`), 0o600))
	must(t, unix.Mount("tmpfs", p, "tmpfs", 0, ""))
	req := v.request()
	req.VolumePath, req.StagingTargetPath = p, ""
	n.expect("healthy", req)
	n.expect("healthy", v.request())
	must(t, unix.Unmount(p, 0))
	n.expect("abnormal", req, "no staged mount")
	n.expect("healthy", v.request())
}
