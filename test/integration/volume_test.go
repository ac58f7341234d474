package integration

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
)

// volume is a real volume, staged and published the way kubelet and a driver
// lay it out.
type volume struct {
	node    *node
	id      string
	fs      string // ext4, xfs, btrfs, tmpfs or block
	image   string
	device  string
	staging string
	pv      string
	pods    []string
}

const podUID = "0d1c5a2e-0000-4000-8000-000000000001"

// volumeSize is small enough for hundreds, and large enough for every mkfs.
func volumeSize(fs string) int64 {
	switch fs {
	case "xfs":
		return 300 << 20
	case "btrfs":
		return 128 << 20
	default:
		return 16 << 20
	}
}

// newVolume makes, stages, fills and publishes a volume.
func (n *node) newVolume(fs, id string) *volume {
	n.t.Helper()
	t := n.t
	v := &volume{node: n, id: id, fs: fs, pv: "pv-" + hash(id)[:8]}
	if fs == "tmpfs" {
		needsKernel(t, uniqueMountIDs(t), "unique mount ids")
	}
	if fs == "block" {
		v.staging = filepath.Join(n.kubelet, "plugins/kubernetes.io/csi/volumeDevices/staging", v.pv)
		mkdir(t, v.staging)
		v.writeVolData(filepath.Join(n.kubelet, "plugins/kubernetes.io/csi/volumeDevices", v.pv, "data"))
	} else {
		v.staging = filepath.Join(n.kubelet, "plugins/kubernetes.io/csi", driver, hash(id), "globalmount")
		mkdir(t, v.staging)
		v.writeVolData(filepath.Dir(v.staging))
	}
	if fs != "tmpfs" {
		v.image = filepath.Join(n.dir, hash(id)+".img")
		f, err := os.Create(v.image)
		must(t, err)
		must(t, f.Truncate(volumeSize(fs)))
		must(t, f.Close())
		images = append(images, v.image)
		v.attach()
		t.Cleanup(func() { unmountBeneath(t, n.dir); v.detach() })
	}
	v.mkfs()
	v.stage()
	v.fill()
	v.publish(podUID)
	return v
}

func (v *volume) attach() {
	v.node.t.Helper()
	v.device = strings.TrimSpace(run(v.node.t, "losetup", "--find", "--show", "--nooverlap", v.image))
}

func (v *volume) detach() {
	if v.device != "" {
		run(v.node.t, "losetup", "--detach", v.device)
		v.device = ""
	}
}

func (v *volume) mkfs() {
	v.node.t.Helper()
	switch v.fs {
	case "ext4":
		run(v.node.t, "mkfs.ext4", "-q", "-m0", v.device)
	case "xfs":
		run(v.node.t, "mkfs.xfs", "-q", v.device)
	case "btrfs":
		run(v.node.t, "mkfs.btrfs", "-q", v.device)
	}
}

// stage does what a driver's NodeStageVolume does.
func (v *volume) stage() {
	v.node.t.Helper()
	switch v.fs {
	case "block":
		// As drivers do that bind the device node to a file of their own.
		must(v.node.t, os.WriteFile(v.stagedFile(), nil, 0o600))
		must(v.node.t, unix.Mount(v.device, v.stagedFile(), "", unix.MS_BIND, ""))
	case "tmpfs":
		must(v.node.t, unix.Mount("tmpfs", v.staging, "tmpfs", unix.MS_NOSUID, "size=4m"))
	default:
		must(v.node.t, unix.Mount(v.device, v.staging, v.fs, unix.MS_NOSUID, ""))
	}
}

// stagedFile is what is mounted by staging: for a block volume a file below the
// staging directory.
func (v *volume) stagedFile() string {
	if v.fs == "block" {
		return filepath.Join(v.staging, "device")
	}
	return v.staging
}

// fill writes data that a test can recognise.
func (v *volume) fill() {
	v.node.t.Helper()
	t := v.node.t
	if v.fs == "block" {
		f, err := os.OpenFile(v.device, os.O_WRONLY, 0)
		must(t, err)
		_, err = f.WriteString(strings.Repeat("block "+v.id+"\n", 1000))
		must(t, err)
		must(t, f.Sync())
		must(t, f.Close())
		return
	}
	mkdir(t, filepath.Join(v.staging, "sub", "deep"))
	for name, text := range map[string]string{"a": "first", "sub/b": "second", "sub/deep/c": strings.Repeat("third ", 5000)} {
		must(t, os.WriteFile(filepath.Join(v.staging, name), []byte(v.id+" "+text), 0o640))
	}
	unix.Sync()
}

// place is the path at which a pod's volume is published.
func (v *volume) place(uid string) string {
	if v.fs == "block" {
		return filepath.Join(v.node.kubelet, "plugins/kubernetes.io/csi/volumeDevices/publish", v.pv, uid)
	}
	return filepath.Join(v.node.kubelet, "pods", uid, "volumes/kubernetes.io~csi", v.pv, "mount")
}

// podLink is kubelet's symbolic link to a published block volume.
func (v *volume) podLink(uid string) string {
	return filepath.Join(v.node.kubelet, "pods", uid, "volumeDevices/kubernetes.io~csi", v.pv)
}

// publish does what kubelet and a driver's NodePublishVolume do.
func (v *volume) publish(uid string) {
	v.node.t.Helper()
	t := v.node.t
	p := v.place(uid)
	if v.fs == "block" {
		mkdir(t, filepath.Dir(p))
		must(t, os.WriteFile(p, nil, 0o600))
		mkdir(t, filepath.Dir(v.podLink(uid)))
		must(t, os.Symlink(p, v.podLink(uid)))
	} else {
		mkdir(t, p)
		v.writeVolData(filepath.Dir(p))
	}
	must(t, unix.Mount(v.stagedFile(), p, "", unix.MS_BIND, ""))
	v.pods = append(v.pods, uid)
}

// unpublish loses the published bind, as a stray umount does.
func (v *volume) unpublish() {
	v.node.t.Helper()
	must(v.node.t, unix.Unmount(v.place(podUID), 0))
}

func (v *volume) writeVolData(dir string) {
	v.node.t.Helper()
	mkdir(v.node.t, dir)
	raw, err := json.Marshal(map[string]string{
		"driverName": driver, "volumeHandle": v.id, "specVolID": v.pv, "nodeName": "node-1",
		"attachmentID": "csi-" + hash(v.id), "volumeLifecycleMode": "Persistent",
	})
	must(v.node.t, err)
	must(v.node.t, os.WriteFile(filepath.Join(dir, "vol_data.json"), raw, 0o600))
}

// request names the volume as the CSI-Addons controller does.
func (v *volume) request() *healerpb.NodeHealerRequest {
	return &healerpb.NodeHealerRequest{
		VolumeId: v.id, VolumePath: v.place(podUID), StagingTargetPath: v.stagedFile(),
		Secrets:       map[string]string{"userKey": canary},
		VolumeContext: map[string]string{"secretish": canary},
	}
}

// canary must never be seen again anywhere.
const canary = "c4n4ry-0f-4-s3cr3t"

// sum gives a checksum of everything in the volume as seen at a path: names,
// types, modes, owners, sizes and content.
func (v *volume) sum(path string) string {
	v.node.t.Helper()
	if v.fs == "block" {
		return fileSum(v.node.t, path)
	}
	h := sha256.New()
	must(v.node.t, filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(path, p)
		info, err := d.Info()
		if err != nil {
			return err
		}
		h.Write([]byte(rel + " " + info.Mode().String() + "\n"))
		if info.Mode().IsRegular() {
			h.Write([]byte(fileSum(v.node.t, p)))
		}
		return nil
	}))
	return hex.EncodeToString(h.Sum(nil))
}

func fileSum(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	must(t, err)
	return hash(string(raw))
}

func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}
