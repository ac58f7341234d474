package harness

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
)

// Volume is a real volume, staged and published the way kubelet and a driver
// lay it out.
type Volume struct {
	Node *Node
	ID   string
	// FS is its kind: ext4, xfs, btrfs, tmpfs or block.
	FS string
	// Image is the file behind Device, its loop device; a tmpfs has neither.
	Image   string
	Device  string
	Staging string
	// PV is the name of its PersistentVolume, a directory name of kubelet's.
	PV string
	// Inline is true for one that its pod names, without a PersistentVolume.
	Inline bool
	// attached keeps the loop device (see Attach).
	attached *os.File
}

// The UIDs of pods are those of this process: other tests, which may run at the same
// time, have cgroups beside its own, and no number of a process is unique in all PID
// namespaces.
var (
	// PodUID is the pod for which every volume is published.
	PodUID = podUID(1)
	// OtherPod is another one, for which Publish may be called.
	OtherPod = podUID(2)
	// UnrelatedPod is a pod that has nothing to do with the volumes.
	UnrelatedPod = podUID(9)
)

func podUID(number int) string { return fmt.Sprintf("%s-0000-4000-8000-%012d", unique, number) }

// unique is a number of eight digits that no other process of the tests has.
var unique = fmt.Sprintf("%08x", rand.Uint32())

// Canary is the secret of every request. It must never be seen again.
const Canary = "c4n4ry-0f-4-s3cr3t"

// NewVolume makes, stages, fills and publishes a volume.
func (n *Node) NewVolume(fs, id string) *Volume {
	n.T.Helper()
	t := n.T
	if fs == "tmpfs" {
		NeedsKernel(t, uniqueMountIDs(t), "unique mount ids")
	}
	v := n.layOut(fs, id)
	if fs != "tmpfs" {
		v.newImage()
		v.Attach()
		t.Cleanup(func() { unmountBeneath(t, n.Dir); v.Detach() })
	}
	v.setUp()
	return v
}

// setUp makes the filesystem, fills it, and publishes it.
func (v *Volume) setUp() {
	v.Node.T.Helper()
	v.mkfs()
	v.Stage()
	v.fill()
	v.Publish(PodUID)
}

// layOut makes the staging directory as kubelet does.
func (n *Node) layOut(fs, id string) *Volume {
	n.T.Helper()
	v := &Volume{Node: n, ID: id, FS: fs, PV: "pv-" + hash(id)[:8]}
	plugins := filepath.Join(n.Kubelet, "plugins/kubernetes.io/csi")
	if fs == "block" {
		v.Staging = filepath.Join(plugins, "volumeDevices/staging", v.PV)
		v.writeVolData(filepath.Join(plugins, "volumeDevices", v.PV, "data"))
	} else {
		v.Staging = filepath.Join(plugins, Driver, hash(id), "globalmount")
		v.writeVolData(filepath.Dir(v.Staging))
	}
	Mkdir(n.T, v.Staging)
	return v
}

// Stage does what a driver's NodeStageVolume does.
func (v *Volume) Stage() {
	v.Node.T.Helper()
	t := v.Node.T
	switch v.FS {
	case "block":
		// As drivers do that bind the device node to a file of their own.
		Must(t, os.WriteFile(v.StagedFile(), nil, 0o600))
		Must(t, unix.Mount(v.Device, v.StagedFile(), "", unix.MS_BIND, ""))
	case "tmpfs":
		Must(t, unix.Mount("tmpfs", v.Staging, "tmpfs", unix.MS_NOSUID, "size=4m"))
	default:
		Must(t, unix.Mount(v.Device, v.Staging, v.FS, unix.MS_NOSUID, ""))
	}
}

// unstage takes everything off the staging path, lazily.
func (v *Volume) unstage() {
	v.Node.T.Helper()
	for len(Layers(v.Node.T, v.Staging)) > 0 {
		Must(v.Node.T, unix.Unmount(v.Staging, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW))
	}
}

// StagedFile is what is mounted by staging: for a block volume a file below the
// staging directory.
func (v *Volume) StagedFile() string {
	if v.FS == "block" {
		return filepath.Join(v.Staging, "device")
	}
	return v.Staging
}

// MountPoint is the path at which the volume is published for PodUID.
func (v *Volume) MountPoint() string { return v.MountPointOf(PodUID) }

// MountPointOf is the path at which a pod's volume is published.
func (v *Volume) MountPointOf(pod string) string {
	if v.FS == "block" {
		return filepath.Join(v.Node.Kubelet, "plugins/kubernetes.io/csi/volumeDevices/publish", v.PV, pod)
	}
	return filepath.Join(v.Node.Kubelet, "pods", pod, "volumes/kubernetes.io~csi", v.PV, "mount")
}

// PodLink is kubelet's symbolic link to a published block volume.
func (v *Volume) PodLink(pod string) string {
	return filepath.Join(v.Node.Kubelet, "pods", pod, "volumeDevices/kubernetes.io~csi", v.PV)
}

// Publish does what kubelet and a driver's NodePublishVolume do.
func (v *Volume) Publish(pod string) {
	v.Node.T.Helper()
	t := v.Node.T
	p := v.MountPointOf(pod)
	if v.FS == "block" {
		Mkdir(t, filepath.Dir(p))
		Must(t, os.WriteFile(p, nil, 0o600))
		Mkdir(t, filepath.Dir(v.PodLink(pod)))
		Must(t, os.Symlink(p, v.PodLink(pod)))
	} else {
		Mkdir(t, p)
		v.writeVolData(filepath.Dir(p))
	}
	Must(t, unix.Mount(v.StagedFile(), p, "", unix.MS_BIND, ""))
}

// Unpublish loses the published bind, as a stray umount does.
func (v *Volume) Unpublish() {
	v.Node.T.Helper()
	Must(v.Node.T, unix.Unmount(v.MountPoint(), 0))
}

// PublishAgain binds the staged volume where it was published.
func (v *Volume) PublishAgain() {
	v.Node.T.Helper()
	// By mount(8), which uses the new mount API where it is there: as drivers do.
	Run(v.Node.T, "mount", "--bind", v.StagedFile(), v.MountPoint())
}

// writeVolData writes the file by which kubelet knows whose directory this is.
func (v *Volume) writeVolData(dir string) {
	v.Node.T.Helper()
	Mkdir(v.Node.T, dir)
	lifecycle := "Persistent"
	if v.Inline {
		lifecycle = "Ephemeral"
	}
	raw, err := json.Marshal(map[string]string{
		"driverName": Driver, "volumeHandle": v.ID, "specVolID": v.PV, "nodeName": "node-1",
		"attachmentID": "csi-" + hash(v.ID), "volumeLifecycleMode": lifecycle,
	})
	Must(v.Node.T, err)
	Must(v.Node.T, os.WriteFile(filepath.Join(dir, "vol_data.json"), raw, 0o600))
}

// Request names the volume as the CSI-Addons controller does.
func (v *Volume) Request() *healerpb.NodeHealerRequest {
	return &healerpb.NodeHealerRequest{
		VolumeId: v.ID, VolumePath: v.MountPoint(), StagingTargetPath: v.StagedFile(),
		Secrets:       map[string]string{"userKey": Canary},
		VolumeContext: map[string]string{"secretish": Canary},
	}
}

func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}
