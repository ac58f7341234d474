package integration

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
)

// TestWhoWrites counts what reaches the disk while a volume whose filesystem counted an
// error is checked: nothing without proof that this node may write. The answer says why.
func TestWhoWrites(t *testing.T) {
	for name, c := range map[string]struct {
		args      []string
		container bool
		writes    bool
		says      string
	}{
		"never":                  {args: []string{"--standalone", "--probe-write=never"}},
		"the caller vouches":     {args: []string{"--standalone"}, writes: true, says: "a write still succeeds"},
		"without a container":    {says: "no write was tried: no running container"},
		"for a container":        {container: true, writes: true, says: "a write still succeeds"},
		"the server only checks": {args: []string{"--standalone", "--mode=check"}, says: "no write was tried: the server only checks"},
	} {
		t.Run(name, func(t *testing.T) {
			n := harness.NewNode(t, c.args...).Start()
			v := n.NewVolume("ext4", "counted")
			if c.container {
				n.NewContainer(harness.PodUID, v.MountPoint())
			}
			// The kernel shall write nothing by itself.
			harness.Must(t, unix.Mount("", v.Staging, "", unix.MS_REMOUNT, "errors=continue,noinit_itable"))
			n.Expect("healthy", v.Request())
			countError(t, v)
			sum := v.Sum(v.MountPoint()) // which moves access times
			v.Freeze()()                 // whatever was to be written is
			syncVolume(t, v)
			before := written(t, v)
			for range 3 {
				n.Expect("abnormal", v.Request(), "FilesystemErrors", c.says)
			}
			syncVolume(t, v)
			if after := written(t, v) - before; (after > 0) != c.writes {
				t.Errorf("%d sectors were written, want some: %v", after, c.writes)
			}
			if v.Sum(v.MountPoint()) != sum {
				t.Error("the data differs")
			}
		})
	}
}

// TestNothingIsWritten counts what reaches the disk by default, of each filesystem
// that is asked in every check whether it is frozen.
func TestNothingIsWritten(t *testing.T) {
	for _, fs := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(fs, func(t *testing.T) {
			n := harness.NewNode(t, "--standalone").Start()
			v := n.NewVolume(fs, "counted")
			if fs == "ext4" { // the kernel shall write nothing by itself
				harness.Must(t, unix.Mount("", v.Staging, "", unix.MS_REMOUNT, "noinit_itable"))
			}
			n.Expect("healthy", v.Request())
			v.Freeze()() // whatever was to be written is
			syncVolume(t, v)
			before := written(t, v)
			for range 100 {
				n.Expect("healthy", v.Request())
			}
			syncVolume(t, v)
			if after := written(t, v) - before; after != 0 {
				t.Errorf("%d sectors were written", after)
			}
		})
	}
}

// written is the number of sectors written to a volume's disk so far
// (Documentation/block/stat.rst).
func written(t *testing.T, v *harness.Volume) uint64 { return diskStat(t, v, 6) }

func diskStat(t *testing.T, v *harness.Volume, field int) uint64 {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(v.Device), "stat"))
	harness.Must(t, err)
	n, err := strconv.ParseUint(strings.Fields(string(raw))[field], 10, 64)
	harness.Must(t, err)
	return n
}
