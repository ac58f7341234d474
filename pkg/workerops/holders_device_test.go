package workerops

import (
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestHoldersOfADeviceNode(t *testing.T) {
	v := newVolume(t, "ext4")
	var st unix.Stat_t
	must(t, unix.Stat(v.device, &st))
	device := Number{unix.Major(st.Rdev), unix.Minor(st.Rdev)}
	node := filepath.Join(newVolume(t, "tmpfs").path, "sdx") // as in a container
	must(t, unix.Mknod(node, unix.S_IFBLK|0o600, int(st.Rdev)))
	direct, own := holder(t, 0, "open="+v.device), holder(t, 0, "open="+node)
	mounted := holder(t, 0, "open="+v.file)
	for name, follow := range bothWays {
		a := whoHolds(t, follow, HoldersQuery{Devices: []Number{device}})
		held := a.Devices[device]
		if howBy(held, direct) != HowDevice || howBy(held, own) != HowDevice || howBy(held, mounted) != 0 {
			t.Errorf("%s: %+v", name, held)
		}
	}
}

func TestExclusive(t *testing.T) {
	v := newVolume(t, "ext4")
	var st unix.Stat_t
	must(t, unix.Stat(v.device, &st))
	q := ExclusiveQuery{Device: v.device, Number: Number{unix.Major(st.Rdev), unix.Minor(st.Rdev)}}
	ask := func(q ExclusiveQuery) syscall.Errno {
		t.Helper()
		a, err := exclusive(q)
		must(t, err)
		return a.Errno
	}
	if got := ask(q); got != unix.EBUSY {
		t.Errorf("mounted: %v", got)
	}
	if got := ask(ExclusiveQuery{Device: v.device, Number: Number{254, 99}}); got != unix.ENXIO {
		t.Errorf("another device: %v", got)
	}
	if got := ask(ExclusiveQuery{Device: v.file, Number: q.Number}); got != unix.ENXIO {
		t.Errorf("a file: %v", got)
	}
	if got := ask(ExclusiveQuery{Device: "/dev/nonexistent", Number: q.Number}); got != unix.ENOENT {
		t.Errorf("no node: %v", got)
	}
	t.Run("lazily unmounted", func(t *testing.T) {
		holder(t, 0, "open="+v.file)
		must(t, unix.Unmount(v.path, unix.MNT_DETACH))
		if got := ask(q); got != unix.EBUSY {
			t.Errorf("%v", got)
		}
	})
	// The last reference to a filesystem goes a moment after the process.
	for range 100 {
		if ask(q) == 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if got := ask(q); got != 0 {
		t.Errorf("unmounted: %v", got)
	}
}
