package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/faultfs"
)

// many is how many names are in a root directory that is too large to read.
const many = 200_000

// TestLargeDirectory checks a volume with very many files in its root: that directory
// is never read, so it costs what an empty one does.
func TestLargeDirectory(t *testing.T) {
	for _, fs := range []string{"ext4", "xfs"} {
		t.Run(fs, func(t *testing.T) {
			n := harness.NewNode(t, "--standalone", "--probe-write=always").Start()
			small, large := n.NewVolume(fs, "small"), n.NewVolume(fs, "large")
			fillWithNames(t, large.MountPoint())
			for _, v := range []*harness.Volume{small, large} {
				readingShows(t, v)
				n.Expect("healthy", v.Request())
			}
			before := accessed(t, large.MountPoint())
			var costs [2][]time.Duration
			for range 50 { // in turn, as the machine has its moods
				for i, v := range []*harness.Volume{small, large} {
					begun := time.Now()
					n.Expect("healthy", v.Request())
					costs[i] = append(costs[i], time.Since(begun))
				}
			}
			if accessed(t, large.MountPoint()) != before {
				t.Error("the directory was read")
			}
			none, all := median(costs[0]), median(costs[1])
			t.Logf("with %d files %s, with few %s: %.2f times", many, all, none, float64(all)/float64(none))
		})
	}
}

// TestChecksReadNoDirectory counts the requests that a FUSE daemon gets.
func TestChecksReadNoDirectory(t *testing.T) {
	n := harness.NewNode(t, "--standalone", "--probe-write=always").Start()
	v, fs := n.NewFUSEVolume("large", faultfs.Config{})
	for range 5 {
		n.Expect("healthy", v.Request())
	}
	if fs.Requests(faultfs.Open) == 0 {
		t.Error("the directory was not even opened")
	}
	if times := fs.Requests(faultfs.Readdir); times != 0 {
		t.Errorf("the directory was read %d times", times)
	}
	_, err := os.ReadDir(v.MountPoint())
	harness.Must(t, err)
	if fs.Requests(faultfs.Readdir) == 0 {
		t.Error("who reads the directory is not counted: the test shows nothing")
	}
}

// fillWithNames makes many names of few files.
func fillWithNames(t *testing.T, dir string) {
	t.Helper()
	file := ""
	for i := range many {
		name := filepath.Join(dir, fmt.Sprint(i))
		if file != "" {
			err := unix.Link(file, name)
			if err == nil {
				continue
			}
			if !errors.Is(err, unix.EMLINK) {
				t.Fatal(err)
			}
		}
		file = name
		harness.Must(t, os.WriteFile(name, nil, 0o600))
	}
}

// readingShows has every mount of a volume note each access, and shows that
// reading its root directory moves the access time.
func readingShows(t *testing.T, v *harness.Volume) {
	t.Helper()
	for _, p := range []string{v.Staging, v.MountPoint()} {
		harness.Must(t, unix.MountSetattr(unix.AT_FDCWD, p, 0, &unix.MountAttr{
			Attr_clr: unix.MOUNT_ATTR__ATIME, Attr_set: unix.MOUNT_ATTR_STRICTATIME,
		}))
	}
	before := accessed(t, v.MountPoint())
	dir, err := os.Open(v.MountPoint())
	harness.Must(t, err)
	defer dir.Close()
	_, err = dir.Readdirnames(1)
	harness.Must(t, err)
	if accessed(t, v.MountPoint()) == before {
		t.Fatal("reading the directory does not move its access time: the test shows nothing")
	}
}

// accessed is the access time of a directory.
func accessed(t *testing.T, dir string) unix.StatxTimestamp {
	t.Helper()
	var st unix.Statx_t
	harness.Must(t, unix.Statx(unix.AT_FDCWD, dir, 0, unix.STATX_ATIME, &st))
	return st.Atime
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}
