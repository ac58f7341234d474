package node

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/facts"
)

func TestDeviceOf(t *testing.T) {
	message := func(fields ...string) []byte { return []byte(strings.Join(fields, "\x00")) }
	for name, tc := range map[string]struct {
		message []byte
		want    facts.Dev
		is      bool
	}{
		"changed":      {message("change@/devices/virtual/block/dm-1", "ACTION=change", "SUBSYSTEM=block", "MAJOR=253", "MINOR=1", "SEQNUM=7"), facts.Dev{Major: 253, Minor: 1}, true},
		"gone":         {message("remove@/x", "ACTION=remove", "SUBSYSTEM=block", "MAJOR=8", "MINOR=16"), facts.Dev{Major: 8, Minor: 16}, true},
		"came":         {message("add@/x", "ACTION=add", "SUBSYSTEM=block", "MAJOR=8", "MINOR=16"), facts.Dev{}, false},
		"another kind": {message("change@/x", "ACTION=change", "SUBSYSTEM=drm", "MAJOR=226", "MINOR=0"), facts.Dev{}, false},
		"no number":    {message("change@/x", "ACTION=change", "SUBSYSTEM=block"), facts.Dev{}, false},
		"garbage":      {[]byte("\x00=\x00libudev\x00"), facts.Dev{}, false},
	} {
		if got, is := deviceOf(tc.message); got != tc.want || is != tc.is {
			t.Errorf("%s: %s, %t", name, got, is)
		}
	}
}

// TestDeviceEvents grows a loop device: the superblock on it is told of.
func TestDeviceEvents(t *testing.T) {
	sysfs := realKernel(t)
	image := filepath.Join(t.TempDir(), "image")
	command(t, "truncate", "--size=4M", image)
	loop := strings.TrimSpace(command(t, "losetup", "--find", "--show", image))
	t.Cleanup(func() { command(t, "losetup", "--detach", loop) })
	dev, err := facts.ParseDev(strings.TrimSpace(command(t, "lsblk", "--noheadings", "--nodeps", "--output", "MAJ:MIN", loop)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	e, err := (&Node{Sysfs: sysfs}).SuperblockEvents(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Follow(ctx, []facts.Mount{{Dev: dev, FSType: "xfs"}}); err != nil {
		t.Fatal(err)
	}
	command(t, "truncate", "--size=8M", image)
	command(t, "losetup", "--set-capacity", loop)
	told(t, e, SuperblockEvent{Dev: dev})
}

// told waits for an event. Others may come before: where there is a udev, it has the kernel
// tell of devices that were written to.
func told(t *testing.T, e *SuperblockEvents, want SuperblockEvent) {
	t.Helper()
	for late := time.After(time.Minute); ; {
		select {
		case got := <-e.Events():
			if got == want {
				return
			}
		case <-late:
			t.Fatalf("not told of %v", want)
		}
	}
}

// change has the kernel say that a block device changed.
func change(t *testing.T, node string) {
	t.Helper()
	done(t, os.WriteFile("/sys/class/block/"+filepath.Base(node)+"/uevent", []byte("change"), 0))
}

func rdevOf(t *testing.T, node string) facts.Dev {
	t.Helper()
	var st unix.Stat_t
	done(t, unix.Stat(node, &st))
	return facts.Dev{Major: unix.Major(st.Rdev), Minor: unix.Minor(st.Rdev)}
}

// The mount table does not show on which device a block volume and a btrfs lie. They are
// followed as soon as they were probed, by what their nodes are and not by how they are
// called.
func TestDeviceEventsOfBlockVolumesAndBtrfs(t *testing.T) {
	realKernel(t)
	n, root := newNode(t)
	raw, _ := loop(t, 4)
	other, _ := loop(t, 4)
	disk, _ := loop(t, 128)
	named := "/dev/" + filepath.Base(root) + "-" + filepath.Base(raw) // as TopoLVM makes its own
	rdev := rdevOf(t, raw)
	done(t, unix.Mknod(named, unix.S_IFBLK|0o600, int(unix.Mkdev(rdev.Major, rdev.Minor))))
	t.Cleanup(func() { done(t, os.Remove(named)) })
	publish := root + "/plugins/kubernetes.io/csi/volumeDevices/publish/"
	bind := func(node, at string) {
		done(t, os.MkdirAll(filepath.Dir(at), 0o700))
		done(t, os.WriteFile(at, nil, 0o600))
		done(t, unix.Mount(node, at, "", unix.MS_BIND, ""))
		t.Cleanup(func() { done(t, unix.Unmount(at, 0)) })
	}
	bind(named, publish+"pv-raw/1")
	bind(other, publish+"pv-other/1")
	at := root + "/pods/1/volumes/kubernetes.io~csi/pv/mount"
	done(t, os.MkdirAll(at, 0o700))
	command(t, "mkfs.btrfs", "--quiet", disk)
	done(t, unix.Mount(disk, at, "btrfs", 0, ""))
	t.Cleanup(func() { done(t, unix.Unmount(at, 0)) })
	e, err := n.SuperblockEvents(t.Context())
	done(t, err)
	for _, path := range []string{publish + "pv-raw/1", publish + "pv-other/1", at} {
		if s := seen(t, n, topAt(t, n, path)); s.Answer.Errno != 0 {
			t.Fatalf("%s: %+v", path, s.Answer)
		}
	}
	mounts, err := n.VolumeMounts()
	done(t, err)
	done(t, e.Follow(t.Context(), mounts))
	nodes := topAt(t, n, publish+"pv-raw/1").Dev
	volume := SuperblockEvent{Dev: nodes, Root: "/" + filepath.Base(named)}
	if got := n.devicesOf(mounts)[rdev]; !slices.Equal(got, []SuperblockEvent{volume}) {
		t.Errorf("on %s lie %v", raw, got)
	}
	change(t, raw)
	told(t, e, volume)
	change(t, disk)
	told(t, e, SuperblockEvent{Dev: topAt(t, n, at).Dev})
}
