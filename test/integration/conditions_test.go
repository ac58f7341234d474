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

	"github.com/csi-addons/node-healer/test/harness"
)

// sick is one way to break a volume, and what has to be said of it.
type sick struct {
	fs     string
	breaks func(t *testing.T, v *harness.Volume)
	says   []string
}

var sicknesses = map[string]sick{
	"the staged mount and the bind are gone": {"ext4", func(t *testing.T, v *harness.Volume) {
		v.Unpublish()
		harness.Must(t, unix.Unmount(v.Staging, 0))
	}, []string{"NotMounted", "StagingNotMounted", "Refused"}},
	"only the staged mount is gone": {"xfs", func(t *testing.T, v *harness.Volume) {
		harness.Must(t, unix.Unmount(v.Staging, 0))
	}, []string{"StagingNotMounted"}},
	"ext4 shut down": {"ext4", func(t *testing.T, v *harness.Volume) {
		shutdown(t, v.Staging)
		_, err := os.Stat(v.MountPoint()) // the cache answers
		harness.Must(t, err)
	}, []string{"FilesystemShutdown"}},
	"ext4 shut down and the bind lost": {"ext4", func(t *testing.T, v *harness.Volume) {
		shutdown(t, v.Staging)
		v.Unpublish()
	}, []string{"FilesystemShutdown", "NotMounted", "not healthy (FilesystemShutdown)"}},
	"xfs shut down": {"xfs", func(t *testing.T, v *harness.Volume) {
		shutdown(t, v.Staging)
	}, []string{"IOError", "EIO"}},
	"ext4 turned read-only after an error": {"ext4", func(t *testing.T, v *harness.Volume) {
		harness.Must(t, unix.Mount("", v.Staging, "", unix.MS_REMOUNT, "errors=remount-ro"))
		trigger := fmt.Sprintf("/sys/fs/ext4/%s/trigger_fs_error", filepath.Base(v.Device))
		harness.Must(t, os.WriteFile(trigger, []byte("test"), 0o600))
		_, err := os.CreateTemp(v.MountPoint(), "")
		harness.NeedsKernel(t, errors.Is(err, unix.EROFS), "that an ext4 turned read-only (a write fails otherwise, which is IOError)")
	}, []string{"ReadOnlyFilesystem"}},
	"ext4 whose backing store is gone": {"ext4", func(t *testing.T, v *harness.Volume) {
		unix.Sync()
		harness.Must(t, os.Truncate(v.Image, 0))
		_, err := os.ReadFile(filepath.Join(v.MountPoint(), "a")) // the cache answers
		harness.Must(t, err)
		needsReadErrors(t, v)
	}, []string{"DeviceReadError", "read the device"}},
	"ext4 whose backing store is gone and the bind lost": {"ext4", func(t *testing.T, v *harness.Volume) {
		unix.Sync()
		harness.Must(t, os.Truncate(v.Image, 0))
		needsReadErrors(t, v)
		v.Unpublish()
	}, []string{"DeviceReadError", "NotMounted", "not healthy (DeviceReadError)"}},
	"bound twice": {"ext4", func(t *testing.T, v *harness.Volume) {
		harness.Must(t, unix.Mount("", v.MountPoint(), "", unix.MS_PRIVATE, ""))
		harness.Must(t, unix.Mount(v.Staging, v.MountPoint(), "", unix.MS_BIND, ""))
	}, []string{"StackedMounts", "2 mounts"}},
	"another filesystem instead of it": {"ext4", func(t *testing.T, v *harness.Volume) {
		v.Unpublish()
		harness.Must(t, unix.Mount("tmpfs", v.MountPoint(), "tmpfs", 0, ""))
	}, []string{"WrongVolumeMounted"}},
	"another volume's disk staged and published": {"ext4", func(t *testing.T, v *harness.Volume) {
		v.Unpublish()
		harness.Must(t, unix.Unmount(v.Staging, 0))
		harness.Run(t, "mkfs.ext4", "-q", "-F", "-m0", v.Device)
		v.Stage()
		v.PublishAgain()
	}, []string{"WrongVolumeMounted", "filesystem UUID"}},
	"another disk staged, and the bind lost": {"ext4", func(t *testing.T, v *harness.Volume) {
		v.Unpublish()
		harness.Must(t, unix.Unmount(v.Staging, 0))
		harness.Run(t, "mkfs.ext4", "-q", "-F", "-m0", v.Device)
		v.Stage()
	}, []string{"WrongVolumeMounted", "NotMounted", "Refused"}},
	"another directory of it instead": {"ext4", func(t *testing.T, v *harness.Volume) {
		v.Unpublish()
		harness.Must(t, unix.Mount(filepath.Join(v.Staging, "sub"), v.MountPoint(), "", unix.MS_BIND, ""))
	}, []string{"WrongVolumeMounted"}},
	"kubelet's file at staging names another volume": {"ext4", func(t *testing.T, v *harness.Volume) {
		harness.Must(t, os.WriteFile(filepath.Join(filepath.Dir(v.Staging), "vol_data.json"),
			[]byte(`{"driverName":"`+harness.Driver+`","volumeHandle":"another"}`), 0o600))
		soon(v.Node, "abnormal", v.Request()) // the file is not read in each call
	}, []string{"WrongVolumeMounted", "vol_data.json"}},
	"a raw block volume that is a file": {"block", func(t *testing.T, v *harness.Volume) {
		v.Unpublish()
		harness.Must(t, unix.Mount(v.Image, v.MountPoint(), "", unix.MS_BIND, ""))
	}, []string{"NotABlockDevice"}},
	"a raw block volume without its disk": {"block", func(_ *testing.T, v *harness.Volume) {
		v.Detach()
	}, []string{"DeviceMissing"}},
	"a raw block volume whose device is gone": {"block", func(t *testing.T, v *harness.Volume) {
		minor := strings.TrimPrefix(v.Device, "/dev/loop")
		v.Detach()
		control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
		harness.Must(t, err)
		defer control.Close()
		var nr int
		_, err = fmt.Sscan(minor, &nr)
		harness.Must(t, err)
		const loopCtlRemove = 0x4C81
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, control.Fd(), loopCtlRemove, uintptr(nr))
		if errno != 0 {
			t.Fatal(errno)
		}
	}, []string{"DeviceMissing"}},
}

// TestConditions breaks a volume in every way and asks twice: it is reported with its
// own reason, no mount changes, and a neighbour stays healthy.
func TestConditions(t *testing.T) {
	for name, s := range sicknesses {
		t.Run(name, func(t *testing.T) {
			n := harness.NewNode(t, "--standalone").Start()
			v := n.NewVolume(s.fs, "sick")
			next := newNeighbour(n)
			n.Expect("healthy", v.Request())
			s.breaks(t, v)
			before := n.Table()
			for range 2 {
				n.Expect("abnormal", v.Request(), s.says...)
				n.SameTable(before)
			}
			next.untouched()
		})
	}
}

// needsReadErrors skips where a loop device reads on when its file is gone: that is
// DeviceSizeChanged then.
func needsReadErrors(t *testing.T, v *harness.Volume) {
	t.Helper()
	err := exec.Command("dd", "if="+v.Device, "of=/dev/null", "iflag=direct", "bs=4096", "count=1").Run()
	harness.NeedsKernel(t, err != nil, "an error where the file behind a loop device is gone")
}

// TestIntendedReadOnly finds nothing wrong with what is read-only by intent.
func TestIntendedReadOnly(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	v := n.NewVolume("ext4", "read-only")
	harness.Must(t, unix.Mount("", v.MountPoint(), "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
	n.Expect("healthy", v.Request())

	whole := n.NewVolume("ext4", "read-only filesystem")
	harness.Must(t, unix.Mount("", whole.Staging, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	req := whole.Request()
	n.Expect("abnormal", req, "ReadOnlyFilesystem")
	req.VolumeCapability = &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "ext4"}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY},
	}
	n.Expect("healthy", req)
}

// TestWorkerKilledDuringACheck answers that call with UNKNOWN, and the next one
// normally.
func TestWorkerKilledDuringACheck(t *testing.T) {
	n := harness.NewNode(t, "--standalone")
	n.Pause = "inspect"
	n.Start()
	v := n.NewVolume("ext4", "checked")
	lost := n.BeginAndStop(v.Request())
	lost.KillWorker()
	if err := lost.Err(); status.Code(err) != codes.Unknown || !strings.Contains(err.Error(), "inspect") {
		t.Errorf("got %v", err)
	}
	next := n.BeginAndStop(v.Request())
	next.Resume()
	if a := next.Answer(); a == nil || a.GetAbnormal() {
		t.Errorf("the next call got %v", a)
	}
}

// shutdown stops a filesystem as a failing disk makes it stop itself
// (EXT4_IOC_SHUTDOWN and XFS_IOC_GOINGDOWN are one ioctl).
func shutdown(t *testing.T, path string) {
	t.Helper()
	const iocShutdown = 0x8004587d
	dir, err := os.Open(path)
	harness.Must(t, err)
	defer dir.Close()
	harness.Must(t, unix.IoctlSetPointerInt(int(dir.Fd()), iocShutdown, 2))
}

// shutdownSeen shuts an ext4 down on a kernel that says so in the mount table.
func shutdownSeen(t *testing.T, v *harness.Volume) {
	t.Helper()
	shutdown(t, v.Staging)
	options := harness.Run(t, "findmnt", "--noheadings", "--output", "FS-OPTIONS", v.Staging)
	harness.NeedsKernel(t, strings.Contains(options, "shutdown"), "that an ext4 was shut down")
}
