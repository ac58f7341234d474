package ops

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// query asks for the device behind a volume, and for the file behind that.
func query(t *testing.T, v volume) ProbeQuery {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Stat(v.device, &st))
	return ProbeQuery{Path: v.path, Device: v.device, Superblock: facts.Dev{Major: unix.Major(st.Rdev), Minor: unix.Minor(st.Rdev)}}
}

func image(v volume) string { return filepath.Join(filepath.Dir(v.path), "image") }

// told is what an open device says of itself; it must be readable.
func told(t *testing.T, q ProbeQuery) facts.OpenedDevice {
	t.Helper()
	a := probe(q)
	if a.Errno != 0 {
		t.Fatalf("%s: %v", a.Op, a.Errno)
	}
	return a.Device
}

func TestFileBehindADevice(t *testing.T) {
	const size = 300 << 20
	for name, tc := range map[string]struct {
		change func(t *testing.T, v volume)
		want   uint64
	}{
		"as long as it":   {func(*testing.T, volume) {}, 0},
		"longer":          {func(t *testing.T, v volume) { must(t, os.Truncate(image(v), size+1)) }, 0},
		"a byte short":    {func(t *testing.T, v volume) { must(t, os.Truncate(image(v), size-1)) }, 1},
		"half of it":      {func(t *testing.T, v volume) { must(t, os.Truncate(image(v), size/2)) }, size / 2},
		"one block":       {func(t *testing.T, v volume) { must(t, os.Truncate(image(v), 4096)) }, size - 4096},
		"deleted":         {func(t *testing.T, v volume) { must(t, os.Remove(image(v))) }, 0},
		"short, and gone": {func(t *testing.T, v volume) { must(t, os.Truncate(image(v), 4096)); must(t, os.Remove(image(v))) }, 0},
		"replaced by a shorter one": {func(t *testing.T, v volume) {
			must(t, os.Rename(image(v), image(v)+".old"))
			must(t, os.WriteFile(image(v), nil, 0o600))
		}, 0},
		"its name is another's": {func(t *testing.T, v volume) {
			must(t, os.Truncate(image(v), 4096))
			must(t, os.Remove(image(v)))
			must(t, os.WriteFile(image(v), nil, 0o600))
		}, 0},
		"its name is a link": {func(t *testing.T, v volume) {
			must(t, os.Truncate(image(v), 4096))
			must(t, os.Rename(image(v), image(v)+".old"))
			must(t, os.Symlink("image.old", image(v)))
		}, size - 4096}, // the kernel follows the rename
		"and the device cut, too": {func(t *testing.T, v volume) {
			must(t, os.Truncate(image(v), size/2))
			output(t, "losetup", "--set-capacity", v.device)
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			v := newVolume(t, "ext4")
			tc.change(t, v)
			q := query(t, v)
			if got := told(t, q); got.Short != tc.want {
				t.Errorf("%d bytes too short, want %d", got.Short, tc.want)
			}
		})
	}
}

func TestFileBehindAPartOfIt(t *testing.T) {
	needsRoot(t)
	file := filepath.Join(realDir(t), "image")
	must(t, os.WriteFile(file, nil, 0o600))
	must(t, os.Truncate(file, 3<<20))
	v := volume{device: output(t, "losetup", "--find", "--show", "--offset", "1048576", "--sizelimit", "1048576", file)}
	t.Cleanup(func() { output(t, "losetup", "--detach", v.device) })
	q := query(t, v)
	for size, want := range map[int64]uint64{3 << 20: 0, 2 << 20: 0, 2<<20 - 512: 512, 1<<20 + 4096: 1<<20 - 4096} {
		must(t, os.Truncate(file, size))
		got, op, errno := readBehind(q.Device, q.Superblock)
		if errno != 0 {
			t.Errorf("%+v, %s: %v", got, op, errno)
		}
		if got.Short != want {
			t.Errorf("a file of %d bytes is %d too short, want %d", size, got.Short, want)
		}
	}
}

func TestDeviceThatFails(t *testing.T) {
	v := newVolume(t, "ext4")
	must(t, os.Truncate(image(v), 0))
	a := probe(query(t, v))
	if a.Op != facts.OpReadDevice || a.Errno != unix.EIO {
		t.Errorf("%+v", a)
	}
	if a.Kind != facts.KindDirectory {
		t.Errorf("the filesystem itself: %+v", a)
	}
}

// What is not the device that was meant says nothing, good or bad.
func TestAnotherDevice(t *testing.T) {
	v := newVolume(t, "ext4")
	must(t, os.Truncate(image(v), 0)) // reading it would fail
	number := query(t, v).Superblock
	for name, other := range map[string]struct {
		node   string
		number facts.Dev
	}{
		"another number": {v.device, facts.Dev{Major: number.Major, Minor: number.Minor + 1000}},
		"a file":         {image(v), number},
		"a character":    {"/dev/null", facts.Dev{Major: 1, Minor: 3}},
		"no node":        {"/dev/nonexistent", number},
	} {
		if a, op, errno := readBehind(other.node, other.number); op != "" || errno != 0 || a != (facts.OpenedDevice{}) {
			t.Errorf("%s: %+v, %s %v", name, a, op, errno)
		}
	}
}

func TestRawBlockVolume(t *testing.T) {
	v := newVolume(t, "ext4")
	q := query(t, v)
	mountPoint := filepath.Join(realDir(t), "mount point")
	must(t, os.WriteFile(mountPoint, nil, 0o600))
	must(t, unix.Mount(v.device, mountPoint, "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(mountPoint, unix.MNT_DETACH) })
	a := probe(ProbeQuery{Path: mountPoint, Root: true})
	if a.Errno != 0 || a.Kind != facts.KindBlock || a.Rdev != q.Superblock ||
		a.Space != (facts.Space{}) {
		t.Errorf("%+v", a)
	}
	must(t, os.Truncate(image(v), 4096))
	if a := probe(ProbeQuery{Path: mountPoint}); a.Errno != 0 || a.Device.Short != 300<<20-4096 {
		t.Errorf("its file is short: %+v", a)
	}
	must(t, os.Truncate(image(v), 0))
	if a := probe(ProbeQuery{Path: mountPoint}); a.Op != facts.OpReadDevice || a.Errno != unix.EIO {
		t.Errorf("its file is empty: %+v", a)
	}
	if err := unix.Unmount(mountPoint, 0); err != nil {
		t.Errorf("still in use: %v", err)
	}
}

// An xfs that shut itself down says nothing of its device, on which all depends that a new stage could end.
func TestDeviceBeneathAFilesystemThatFails(t *testing.T) {
	v := newVolume(t, "xfs")
	q := query(t, v)
	shutDown(t, v.path)
	if a := probe(q); a.Op != "statx" || a.Errno != unix.EIO || a.Device.Errno != 0 {
		t.Errorf("the device works: %+v", a)
	}
	must(t, os.Truncate(image(v), 0))
	if a := probe(q); a.Op != "statx" || a.Errno != unix.EIO || a.Device.Errno != unix.EIO {
		t.Errorf("the device fails: %+v", a)
	}
}

// A worker that waits for its next job keeps nothing of a volume.
func TestNothingIsKeptOfADevice(t *testing.T) {
	v := newVolume(t, "ext4")
	image, err := os.OpenFile(image(v), os.O_WRONLY, 0)
	must(t, err)
	defer image.Close()
	_, err = image.WriteAt(bytes.Repeat([]byte("secret"), 100), 0) // before the filesystem's superblock
	must(t, err)
	fd, err := unix.Open(v.device, unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(fd)
	buf := aligned(deviceBlock)
	for _, when := range []string{"after a read", "after a short read"} {
		if op, errno := readInto(fd, buf); len(buf) != deviceBlock || errno != 0 && when == "after a read" {
			t.Errorf("%s: %s %v", when, op, errno)
		}
		if len(bytes.Trim(buf, "\x00")) != 0 {
			t.Errorf("%s: %.40q", when, buf)
		}
		must(t, image.Truncate(512)) // the next read ends early
	}
}
