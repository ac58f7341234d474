package node

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// Here the kernel itself is asked, about loop devices and what is mounted from
// them.

func realKernel(t testing.TB) Sysfs {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("CI") != "" {
			t.Fatal("needs root, and in CI a test that would skip fails")
		}
		t.Skip("needs root, for mounts and loop devices")
	}
	return "/sys"
}

func command(t testing.TB, words ...string) string {
	t.Helper()
	out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", words, err, out)
	}
	return strings.TrimSpace(string(out))
}

// loop attaches a file of that many MiB.
func loop(t testing.TB, mib int64, options ...string) (node, image string) {
	t.Helper()
	image = filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, mib<<20); err != nil {
		t.Fatal(err)
	}
	node = command(t, append(append([]string{"losetup", "--find", "--show"}, options...), image)...)
	t.Cleanup(func() {
		// It may be detached by now, and in use by another process.
		if mine := command(t, "losetup", "--list", "--noheadings", "--output", "NAME,BACK-FILE"); strings.Contains(mine, image) {
			command(t, "losetup", "--detach", node)
		}
	})
	return node, image
}

// propagatedMounts runs a shell script in a mount namespace of its own, where what it
// mounts stays until end is called: the machine sees none of it.
func propagatedMounts(t testing.TB, script string, args []string) (pid int, end func()) {
	t.Helper()
	cmd := exec.Command("sh", append([]string{"-ec", script + "\necho ready\nexec cat", "sh"}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	hold, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	end = func() {
		if !ended {
			ended = true
			_ = hold.Close()
			_ = cmd.Wait()
		}
	}
	t.Cleanup(end)
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		end()
		t.Fatalf("%s: %q, %v\n%s", script, line, err, complaint.String())
	}
	return cmd.Process.Pid, end
}

func mounted(t testing.TB, node string) (end func()) {
	t.Helper()
	_, end = propagatedMounts(t, `mount "$1" "$2"`, []string{node, t.TempDir()})
	return end
}

// devOf returns the number of a device node in devtmpfs.
func devOf(t testing.TB, node string) facts.Dev {
	t.Helper()
	raw, err := os.ReadFile("/sys/class/block/" + filepath.Base(node) + "/dev")
	if err != nil {
		t.Fatal(err)
	}
	major, minor, _ := strings.Cut(strings.TrimSpace(string(raw)), ":")
	return facts.Dev{Major: number(t, major), Minor: number(t, minor)}
}

func number(t testing.TB, s string) uint32 {
	t.Helper()
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(n)
}

func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

func TestLoopDevice(t *testing.T) {
	sysfs := realKernel(t)
	node, image := loop(t, 64, "--offset", "1048576", "--sizelimit", "33554432")
	command(t, "mkfs.ext4", "-q", node)
	dev := devOf(t, node)
	got := sysfs.BlockDevice(dev)
	want := facts.BlockDevice{
		Dev: dev, Name: filepath.Base(node), DiskSeq: got.DiskSeq, Identity: facts.Identity{Size: 32 << 20},
	}
	if !reflect.DeepEqual(got, want) || got.DiskSeq == 0 {
		t.Fatalf("got  %+v\nwant %+v", got, want)
	}

	command(t, "blockdev", "--setro", node)
	readOnly := sysfs.BlockDevice(dev).ReadOnly
	command(t, "blockdev", "--setrw", node) // it would outlive the file
	if !readOnly || sysfs.BlockDevice(dev).ReadOnly {
		t.Errorf("read-only: %t with protection, %t without", readOnly, sysfs.BlockDevice(dev).ReadOnly)
	}

	end := mounted(t, node)
	if err := os.Remove(image); err != nil {
		t.Fatal(err)
	}
	command(t, "losetup", "--detach", node)
	want.BackingFileGone = true
	if got := sysfs.BlockDevice(dev); !reflect.DeepEqual(got, want) {
		t.Errorf("deleted and detached while mounted: got  %+v\nwant %+v", got, want)
	}
	end()
	eventually(t, "the device lets go of the file", func() bool {
		d := sysfs.BlockDevice(dev)
		return d.DiskSeq != want.DiskSeq && !d.BackingFileGone
	})
}

func TestPartitionOfALoopDevice(t *testing.T) {
	sysfs := realKernel(t)
	node, _ := loop(t, 64, "--partscan")
	command(t, "addpart", node, "1", "2048", "4096")
	dev := devOf(t, node+"p1")
	disk, part := sysfs.BlockDevice(devOf(t, node)), sysfs.BlockDevice(dev)
	want := facts.BlockDevice{
		Dev: dev, Name: filepath.Base(node) + "p1", DiskSeq: disk.DiskSeq,
		Identity: facts.Identity{Partition: "1", Size: 2 << 20},
	}
	if !reflect.DeepEqual(part, want) {
		t.Errorf("got  %+v\nwant %+v", part, want)
	}
	command(t, "delpart", node, "1")
	if got := sysfs.BlockDevice(dev); !got.Missing {
		t.Errorf("deleted: %+v", got)
	}
}

func TestExt4Errors(t *testing.T) {
	sysfs := realKernel(t)
	node, _ := loop(t, 64)
	command(t, "mkfs.ext4", "-q", node)
	name := filepath.Base(node)
	if e := sysfs.FilesystemErrors("ext4", name); e != nil {
		t.Errorf("not mounted: %+v", e)
	}
	end := mounted(t, node)
	if e := sysfs.FilesystemErrors("ext4", name); e == nil || *e != (facts.FilesystemErrors{}) {
		t.Errorf("healthy: %+v", e)
	}
	cause := func() {
		if err := os.WriteFile("/sys/fs/ext4/"+name+"/trigger_fs_error", []byte("a test's"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	counted := func(n uint64) {
		eventually(t, "the error is counted", func() bool { return sysfs.FilesystemErrors("ext4", name).Count == n })
	}
	// The kernel reads a clock that runs up to one tick behind.
	before := time.Now().Add(-time.Second).Truncate(time.Second)
	cause()
	counted(1)
	first := *sysfs.FilesystemErrors("ext4", name)
	want := facts.FilesystemErrors{
		Count: 1, LastTime: first.LastTime, LastFunction: "trigger_test_error",
	}
	if first != want || first.LastTime.Before(before) || first.LastTime.After(time.Now()) {
		t.Errorf("got %+v since %s", first, before)
	}
	cause()
	counted(2)
	if e := sysfs.FilesystemErrors("ext4", name); e.LastTime.Before(first.LastTime) {
		t.Errorf("got %+v after %+v", e, first)
	}
	end()
	eventually(t, "the filesystem is gone", func() bool { return sysfs.FilesystemErrors("ext4", name) == nil })
	mounted(t, node)
	if e := sysfs.FilesystemErrors("ext4", name); e == nil || e.Count != 2 {
		t.Errorf("mounted again: %+v", e)
	}
}

func BenchmarkDevice(b *testing.B) {
	sysfs := realKernel(b)
	node, _ := loop(b, 64)
	dev := devOf(b, node)
	b.ReportAllocs()
	for b.Loop() {
		sysfs.BlockDevice(dev)
	}
}

func BenchmarkExt4Errors(b *testing.B) {
	sysfs := realKernel(b)
	node, _ := loop(b, 64)
	command(b, "mkfs.ext4", "-q", node)
	mounted(b, node)
	name := filepath.Base(node)
	b.ReportAllocs()
	for b.Loop() {
		sysfs.FilesystemErrors("ext4", name)
	}
}
