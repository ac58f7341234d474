package host

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestDeviceOf(t *testing.T) {
	message := func(fields ...string) []byte { return []byte(strings.Join(fields, "\x00")) }
	for name, tc := range map[string]struct {
		message []byte
		want    Dev
		is      bool
	}{
		"changed":      {message("change@/devices/virtual/block/dm-1", "ACTION=change", "SUBSYSTEM=block", "MAJOR=253", "MINOR=1", "SEQNUM=7"), Dev{Major: 253, Minor: 1}, true},
		"gone":         {message("remove@/x", "ACTION=remove", "SUBSYSTEM=block", "MAJOR=8", "MINOR=16"), Dev{Major: 8, Minor: 16}, true},
		"came":         {message("add@/x", "ACTION=add", "SUBSYSTEM=block", "MAJOR=8", "MINOR=16"), Dev{}, false},
		"another kind": {message("change@/x", "ACTION=change", "SUBSYSTEM=drm", "MAJOR=226", "MINOR=0"), Dev{}, false},
		"no number":    {message("change@/x", "ACTION=change", "SUBSYSTEM=block"), Dev{}, false},
		"garbage":      {[]byte("\x00=\x00libudev\x00"), Dev{}, false},
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
	dev, err := ParseDev(strings.TrimSpace(command(t, "lsblk", "--noheadings", "--nodeps", "--output", "MAJ:MIN", loop)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	e, err := (&Node{cfg: Config{Sysfs: sysfs}}).SuperblockEvents(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Follow(ctx, []VolumeMount{{Dev: dev, FSType: "xfs"}}); err != nil {
		t.Fatal(err)
	}
	command(t, "truncate", "--size=8M", image)
	command(t, "losetup", "--set-capacity", loop)
	select {
	case got := <-e.Events():
		if got != dev {
			t.Errorf("told of %s, want %s", got, dev)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("not told")
	}
}
