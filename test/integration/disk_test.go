package integration

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/faultfs"
)

// TestDiskFails breaks a disk whose filesystem still answers from memory; the volume
// is healthy again when the disk is.
func TestDiskFails(t *testing.T) {
	for name, c := range map[string]struct {
		breaks func(fs *faultfs.FS)
		says   []string
		mends  func(fs *faultfs.FS)
	}{
		"reads fail": {
			func(fs *faultfs.FS) { fs.Fail(unix.EIO, faultfs.Read) },
			[]string{"DeviceReadError", "read the device", "EIO"},
			func(fs *faultfs.FS) { fs.Lift() },
		},
		"reads are not answered": {
			func(fs *faultfs.FS) { fs.Hang(faultfs.Read) },
			[]string{"NotResponding", "no answer within "},
			func(fs *faultfs.FS) { fs.Lift() },
		},
		"nothing is answered": {
			(*faultfs.FS).Stop,
			[]string{"NotResponding", "no answer within "},
			(*faultfs.FS).Continue,
		},
		// A daemon that is gone does not come back to its connection.
		"all is gone": {(*faultfs.FS).Kill, []string{"DeviceReadError", "read the device"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			n := harness.NewNode(t, "--standalone", "--probe-timeout=3s").Start()
			next := newNeighbour(n)
			v, fs := n.NewVolumeOnFaults("ext4", "disk")
			n.Expect("healthy", v.Request())
			before := n.Table()
			c.breaks(fs)
			for range 2 {
				n.Expect("abnormal", v.Request(), c.says...)
				n.SameTable(before)
			}
			next.untouched()
			if c.mends == nil {
				return
			}
			c.mends(fs)
			harness.Eventually(t, "it is healthy again", func() bool {
				a, err := n.Call(v.Request())
				return err == nil && !a.GetAbnormal()
			})
			n.SameTable(before)
		})
	}
}

// TestDiskSlow ignores one late answer, and reports several in a row, until one is in
// time again.
func TestDiskSlow(t *testing.T) {
	n := harness.NewNode(t, "--standalone", "--slow-answer=500ms", "--probe-timeout=1m").Start()
	next := newNeighbour(n)
	v, fs := n.NewVolumeOnFaults("ext4", "slow")
	n.Expect("healthy", v.Request())
	before := n.Table()
	fs.Delay(harness.Slowly(600*time.Millisecond), faultfs.Read)
	n.Expect("healthy", v.Request())
	harness.Eventually(t, "it is reported", func() bool {
		a, err := n.Call(v.Request())
		return err == nil && a.GetAbnormal() && strings.Contains(a.GetMessage(), "SlowResponse")
	})
	n.Expect("abnormal", v.Request(), "SlowResponse", "in a row")
	next.untouched()
	fs.Lift()
	soon(n, "healthy", v.Request())
	n.SameTable(before)
}

// TestDiskDropsWrites has a disk acknowledge writes and lose them. Until the lost data
// is read, the volume is healthy; the filesystem, which checksums its own metadata,
// notices when it reads it.
func TestDiskDropsWrites(t *testing.T) {
	for behaviour, reason := range map[string]string{
		"errors=remount-ro": "ReadOnlyFilesystem", "errors=continue": "FilesystemErrors",
	} {
		t.Run(behaviour, func(t *testing.T) {
			// A write of our own might be the one that fails, and say so first.
			n := harness.NewNode(t, "--standalone", "--probe-write=never").Start()
			next := newNeighbour(n)
			v, fs := n.NewVolumeOnFaults("ext4", "forgetful")
			harness.Must(t, unix.Mount("", v.Staging, "", unix.MS_REMOUNT, behaviour))
			n.Expect("healthy", v.Request())
			before := n.Table()
			fs.DropWrites()
			writeFiles(t, v, "lost")
			flush(t, v)
			fs.Lift()
			if raw, err := os.ReadFile(filepath.Join(v.MountPoint(), "lost-0")); err != nil || !bytes.Equal(raw, make([]byte, len(content))) {
				t.Fatalf("what was written is not forgotten: %d bytes, %v", len(raw), err)
			}
			n.Expect("healthy", v.Request())
			n.SameTable(before)
			writeFiles(t, v, "more")
			syncVolume(t, v)
			for range 2 {
				n.Expect("abnormal", v.Request(), reason)
			}
			next.untouched()
		})
	}
}

// content is more than one block, and no zeroes.
var content = bytes.Repeat([]byte("content\n"), 2000)

// writeFiles makes new files, for which the filesystem needs blocks. Whether
// they can be made is not the question.
func writeFiles(t *testing.T, v *harness.Volume, name string) {
	t.Helper()
	for i := range 3 {
		_ = os.WriteFile(filepath.Join(v.MountPoint(), fmt.Sprintf("%s-%d", name, i)), content, 0o600)
	}
}

func syncVolume(t *testing.T, v *harness.Volume) {
	t.Helper()
	dir, err := os.Open(v.MountPoint())
	harness.Must(t, err)
	defer dir.Close()
	_ = unix.Syncfs(int(dir.Fd()))
}

// flush has the filesystem write out all that it has, and forget it, so that
// the next one who wants it reads the disk.
func flush(t *testing.T, v *harness.Volume) {
	t.Helper()
	v.Freeze()() // to freeze is to empty the journal too
	for i := range 3 {
		f, err := os.Open(filepath.Join(v.MountPoint(), fmt.Sprintf("lost-%d", i)))
		harness.Must(t, err)
		harness.Must(t, unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED))
		harness.Must(t, f.Close())
	}
	harness.Run(t, "blockdev", "--flushbufs", v.Device)
}
