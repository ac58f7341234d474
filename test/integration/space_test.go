package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
)

// fillings are the ways in which a volume can be full, and what is reported.
var fillings = map[string]struct {
	fill func(t *testing.T, dir string)
	says string
}{
	"blocks": {fillBlocks, "OutOfSpace"},
	"inodes": {fillInodes, "OutOfInodes"},
}

// TestFull reports a full volume, changes nothing, and reports it as healthy after
// something was deleted. (Not of an xfs, which keeps its last blocks for itself and
// counts them as available.)
func TestFull(t *testing.T) {
	for _, fs := range []string{"ext4", "tmpfs"} {
		t.Run(fs, func(t *testing.T) { testFull(t, fs) })
	}
}

func testFull(t *testing.T, fs string) {
	n := harness.NewNode(t, "--standalone").Start()
	next := newNeighbour(n)
	full := map[*harness.Volume]string{} // with what is to be said of it
	for what, c := range fillings {
		v := n.NewVolume(fs, fs+" without "+what)
		if fs == "tmpfs" { // by itself it has millions of inodes
			harness.Must(t, unix.Mount("", v.Staging, "", unix.MS_REMOUNT, "nr_inodes=1000"))
		}
		n.Expect("healthy", v.Request())
		c.fill(t, v.MountPoint())
		full[v] = c.says
	}
	before := n.Table()
	for v, says := range full {
		sum := v.Sum(v.MountPoint())
		soon(n, "abnormal", v.Request())
		n.Expect("abnormal", v.Request(), says, "Nothing was changed")
		if v.Sum(v.MountPoint()) != sum {
			t.Errorf("%s: the data differs", v.ID)
		}
	}
	n.SameTable(before)
	next.untouched()
	for v := range full {
		harness.Must(t, os.RemoveAll(filepath.Join(v.MountPoint(), "filling")))
		syncVolume(t, v)
	}
	for v := range full {
		soon(n, "healthy", v.Request())
	}
}

// TestRebindOfAFullVolume heals a mount point of a full volume: that it has no space is
// no reason to leave a pod without its mount.
func TestRebindOfAFullVolume(t *testing.T) {
	for what, c := range fillings {
		t.Run(what, func(t *testing.T) {
			n := harness.NewNode(t, "--standalone").Start()
			v := n.NewVolume("ext4", "full")
			n.Expect("healthy", v.Request())
			before := n.Table()
			c.fill(t, v.MountPoint())
			sum := v.Sum(v.MountPoint())
			soon(n, "abnormal", v.Request())
			v.Unpublish()
			// What is still wrong is still said.
			n.Expect("abnormal", v.Request(), "Done: rebind of", c.says)
			n.SameTable(before)
			if v.Sum(v.MountPoint()) != sum {
				t.Error("the data differs")
			}
		})
	}
}

// TestFirstSeenFull treats a volume as healthy that never had free space as far as is
// known: some filesystems never report any. It is healed like any other.
func TestFirstSeenFull(t *testing.T) {
	for what, c := range fillings {
		t.Run(what, func(t *testing.T) {
			n := harness.NewNode(t, "--standalone").Start()
			v := n.NewVolume("ext4", "full")
			c.fill(t, v.MountPoint())
			n.Expect("healthy", v.Request())
			v.Unpublish()
			n.Expect("healed", v.Request())
			harness.Must(t, os.RemoveAll(filepath.Join(v.MountPoint(), "filling")))
			syncVolume(t, v)
			n.Expect("healthy", v.Request())
			c.fill(t, v.MountPoint())
			soon(n, "abnormal", v.Request())
			n.Expect("abnormal", v.Request(), c.says)
		})
	}
}

// fillBlocks writes until there is no block left, also for small files.
func fillBlocks(t *testing.T, dir string) {
	t.Helper()
	filling := filepath.Join(dir, "filling")
	harness.Mkdir(t, filling)
	for _, size := range []int{1 << 20, 64 << 10, 1 << 10} {
		f, err := os.Create(filepath.Join(filling, fmt.Sprint(size)))
		if errors.Is(err, unix.ENOSPC) {
			return
		}
		harness.Must(t, err)
		// Delayed allocation takes no space before fsync: write until nothing is left after it.
		piece := make([]byte, size)
		for n := 1; n > 0; {
			n = 0
			for {
				if _, err = f.Write(piece); err != nil {
					break
				}
				n++
			}
			if syncErr := f.Sync(); !errors.Is(syncErr, unix.ENOSPC) {
				harness.Must(t, syncErr)
			}
		}
		harness.Must(t, f.Close())
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
	}
}

// fillInodes makes files until there is no inode left.
func fillInodes(t *testing.T, dir string) {
	t.Helper()
	filling := filepath.Join(dir, "filling")
	harness.Mkdir(t, filling)
	for i := 0; ; i++ {
		err := unix.Mknod(filepath.Join(filling, fmt.Sprint(i)), unix.S_IFREG|0o600, 0)
		if errors.Is(err, unix.ENOSPC) {
			return
		}
		harness.Must(t, err)
	}
}
