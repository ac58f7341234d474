package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
)

// sick is one way to break a volume, and what has to be said of it.
type sick struct {
	fs     string
	breaks func(t *testing.T, v *volume)
	says   []string
}

var sicknesses = map[string]sick{
	"the staged mount and the bind are gone": {"ext4", func(t *testing.T, v *volume) {
		v.unpublish()
		must(t, unix.Unmount(v.staging, 0))
	}, []string{"NotMounted", "StagingNotMounted", "Refused"}},
	"only the staged mount is gone": {"xfs", func(t *testing.T, v *volume) {
		must(t, unix.Unmount(v.staging, 0))
	}, []string{"StagingNotMounted"}},
	"ext4 shut down": {"ext4", func(t *testing.T, v *volume) {
		shutdown(t, v.staging)
		_, err := os.Stat(v.place(podUID)) // the cache answers
		must(t, err)
		needsKernel(t, strings.Contains(run(t, "findmnt", "--noheadings", "--output", "FS-OPTIONS", v.staging), "shutdown"),
			"that an ext4 was shut down")
	}, []string{"FilesystemShutdown"}},
	"ext4 shut down and the bind lost": {"ext4", func(t *testing.T, v *volume) {
		shutdown(t, v.staging)
		needsKernel(t, strings.Contains(run(t, "findmnt", "--noheadings", "--output", "FS-OPTIONS", v.staging), "shutdown"),
			"that an ext4 was shut down")
		v.unpublish()
	}, []string{"FilesystemShutdown", "NotMounted", "not healthy (FilesystemShutdown)"}},
	"xfs shut down": {"xfs", func(t *testing.T, v *volume) {
		shutdown(t, v.staging)
	}, []string{"IOError", "EIO"}},
	"ext4 turned read-only after an error": {"ext4", func(t *testing.T, v *volume) {
		must(t, unix.Mount("", v.staging, "", unix.MS_REMOUNT, "errors=remount-ro"))
		trigger := fmt.Sprintf("/sys/fs/ext4/%s/trigger_fs_error", filepath.Base(v.device))
		must(t, os.WriteFile(trigger, []byte("test"), 0o600))
	}, []string{"ReadOnlyFilesystem"}},
	"ext4 whose backing store is gone": {"ext4", func(t *testing.T, v *volume) {
		unix.Sync()
		must(t, os.Truncate(v.image, 0))
		_, err := os.ReadFile(filepath.Join(v.place(podUID), "a")) // the cache answers
		must(t, err)
	}, []string{"IOError", "read the device"}},
	"ext4 whose backing store is gone and the bind lost": {"ext4", func(t *testing.T, v *volume) {
		unix.Sync()
		must(t, os.Truncate(v.image, 0))
		v.unpublish()
	}, []string{"IOError", "NotMounted", "not healthy (IOError)"}},
	"the superblock is read-only": {"btrfs", func(t *testing.T, v *volume) {
		must(t, unix.Mount("", v.staging, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	}, []string{"ReadOnlyFilesystem"}},
	"the published mount is read-only": {"ext4", func(t *testing.T, v *volume) {
		must(t, unix.Mount("", v.place(podUID), "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
	}, []string{"ReadOnlyFilesystem", "recorded was read-write"}},
	"bound twice": {"ext4", func(t *testing.T, v *volume) {
		must(t, unix.Mount("", v.place(podUID), "", unix.MS_PRIVATE, ""))
		must(t, unix.Mount(v.staging, v.place(podUID), "", unix.MS_BIND, ""))
	}, []string{"StackedMounts", "2 mounts"}},
	"another filesystem in its place": {"ext4", func(t *testing.T, v *volume) {
		v.unpublish()
		must(t, unix.Mount("tmpfs", v.place(podUID), "tmpfs", 0, ""))
	}, []string{"WrongVolumeMounted"}},
	"another volume's disk staged and published": {"ext4", func(t *testing.T, v *volume) {
		v.unpublish()
		must(t, unix.Unmount(v.staging, 0))
		run(t, "mkfs.ext4", "-q", "-F", "-m0", v.device)
		v.stage()
		v.publishAgain()
	}, []string{"WrongVolumeMounted", "filesystem UUID"}},
	"another disk staged, and the bind lost": {"ext4", func(t *testing.T, v *volume) {
		v.unpublish()
		must(t, unix.Unmount(v.staging, 0))
		run(t, "mkfs.ext4", "-q", "-F", "-m0", v.device)
		v.stage()
	}, []string{"WrongVolumeMounted", "NotMounted", "Refused"}},
	"another directory of it in its place": {"ext4", func(t *testing.T, v *volume) {
		v.unpublish()
		must(t, unix.Mount(filepath.Join(v.staging, "sub"), v.place(podUID), "", unix.MS_BIND, ""))
	}, []string{"WrongVolumeMounted"}},
	"kubelet's file at staging names another volume": {"ext4", func(t *testing.T, v *volume) {
		must(t, os.WriteFile(filepath.Join(filepath.Dir(v.staging), "vol_data.json"),
			[]byte(`{"driverName":"`+driver+`","volumeHandle":"another"}`), 0o600))
	}, []string{"WrongVolumeMounted", "vol_data.json"}},
	"a raw block volume that is a file": {"block", func(t *testing.T, v *volume) {
		v.unpublish()
		must(t, unix.Mount(v.image, v.place(podUID), "", unix.MS_BIND, ""))
	}, []string{"NotABlockDevice"}},
	"a raw block volume without its disk": {"block", func(_ *testing.T, v *volume) {
		v.detach()
	}, []string{"DeviceMissing"}},
	"a raw block volume whose device is gone": {"block", func(t *testing.T, v *volume) {
		minor := strings.TrimPrefix(v.device, "/dev/loop")
		v.detach()
		control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
		must(t, err)
		defer control.Close()
		var nr int
		_, err = fmt.Sscan(minor, &nr)
		must(t, err)
		const loopCtlRemove = 0x4C81
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, control.Fd(), loopCtlRemove, uintptr(nr))
		if errno != 0 {
			t.Fatal(errno)
		}
	}, []string{"DeviceMissing"}},
}

// TestConditions breaks a volume in every way, asks twice, and sees that it is
// reported with its own reason, that nothing moved, and that a neighbour is
// healthy all the while.
func TestConditions(t *testing.T) {
	for name, s := range sicknesses {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, "--standalone").start()
			v := n.newVolume(s.fs, "sick")
			other := n.newVolume("ext4", "neighbour")
			n.expect("healthy", v.request())
			n.expect("healthy", other.request())
			s.breaks(t, v)
			before := n.table()
			for range 2 {
				n.expect("abnormal", v.request(), s.says...)
				n.sameTable(before)
			}
			n.expect("healthy", other.request())
		})
	}
}

// TestIntendedReadOnly finds nothing wrong with what is read-only by intent.
func TestIntendedReadOnly(t *testing.T) {
	n := newNode(t, "--standalone").start()
	v := n.newVolume("ext4", "read-only")
	must(t, unix.Mount("", v.place(podUID), "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
	n.expect("healthy", v.request())

	whole := n.newVolume("ext4", "read-only filesystem")
	must(t, unix.Mount("", whole.staging, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	req := whole.request()
	n.expect("abnormal", req, "ReadOnlyFilesystem")
	req.VolumeCapability = &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "ext4"}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY},
	}
	n.expect("healthy", req)
}

// TestFuse sees what a daemon answers, and what one that is gone or mute does.
func TestFuse(t *testing.T) {
	for name, c := range map[string]struct {
		breaks func(d *fuseDaemon)
		says   string
	}{
		"dead":              {func(d *fuseDaemon) { d.abort() }, "Disconnected"},
		"mute":              {func(d *fuseDaemon) { d.mute.Store(true) }, "NotResponding"},
		"stale":             {func(d *fuseDaemon) { d.errno.Store(int32(unix.ESTALE)) }, "StaleFileHandle"},
		"input/output":      {func(d *fuseDaemon) { d.errno.Store(int32(unix.EIO)) }, "IOError"},
		"permission denied": {func(d *fuseDaemon) { d.errno.Store(int32(unix.EACCES)) }, "PermissionDenied"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, "--standalone", "--probe-timeout=1s").start()
			v := n.newVolume("tmpfs", "fuse")
			v.unpublish()
			must(t, unix.Unmount(v.staging, 0))
			d := mountFuse(t, v.staging)
			v.publishAgain()
			n.expect("healthy", v.request())
			c.breaks(d)
			before := n.table()
			for range 2 {
				n.expect("abnormal", v.request(), c.says)
			}
			n.sameTable(before)
			if name == "mute" {
				// The request it swallowed is lost; end the connection so that
				// the worker waiting for it can end.
				d.abort()
			}
		})
	}
}

// TestStuckWorker asks again and again for a volume at which a worker cannot be
// ended: that costs one process, others are served, and the server still ends
// well.
func TestStuckWorker(t *testing.T) {
	n := newNode(t, "--standalone", "--probe-timeout=300ms").start()
	v, other := n.newVolume("tmpfs", "stuck"), n.newVolume("ext4", "fine")
	v.unpublish()
	must(t, unix.Unmount(v.staging, 0))
	d := mountFuse(t, v.staging)
	v.publishAgain()
	n.expect("healthy", v.request())
	d.mute.Store(true)
	for range 5 {
		n.expect("abnormal", v.request(), "NotResponding")
		n.expect("healthy", other.request())
	}
	var stuck []int
	for _, pid := range n.workers() {
		if state(pid) == "D" {
			stuck = append(stuck, pid)
		}
	}
	if len(stuck) != 1 {
		t.Errorf("%d workers wait uninterruptibly for one volume, want 1", len(stuck))
	}
	server := n.server.Process.Pid
	n.stop()
	if state(server) != "" {
		t.Error("the server did not end")
	}
	d.abort()
	eventually(t, "the stuck worker ends", func() bool { return len(stuck) == 0 || slices.Contains([]string{"", "Z"}, state(stuck[0])) })
}

// TestWorkerKilledWhileLooking answers that call with UNKNOWN, and the next.
func TestWorkerKilledWhileLooking(t *testing.T) {
	n := newNode(t, "--standalone")
	n.pause = "look"
	n.start()
	v := n.newVolume("ext4", "looked at")
	failed := make(chan error, 1)
	go func() { _, err := n.call(v.request()); failed <- err }()
	must(t, unix.Kill(n.stopped(), unix.SIGKILL))
	if err := <-failed; status.Code(err) != codes.Unknown || !strings.Contains(err.Error(), "look") {
		t.Errorf("got %v", err)
	}
	answered := n.asyncCall(v.request())
	resume(t, n.stopped())
	if a := <-answered; a == nil || a.GetAbnormal() {
		t.Errorf("the next call got %v", a)
	}
}

// shutdown stops a filesystem as a failing disk makes it stop itself
// (EXT4_IOC_SHUTDOWN and XFS_IOC_GOINGDOWN are one ioctl).
func shutdown(t *testing.T, path string) {
	t.Helper()
	const iocShutdown = 0x8004587d
	dir, err := os.Open(path)
	must(t, err)
	defer dir.Close()
	must(t, unix.IoctlSetPointerInt(int(dir.Fd()), iocShutdown, 2))
}
