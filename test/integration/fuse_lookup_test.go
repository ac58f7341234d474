package integration

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/api/adminpb"
	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/faultfs"
)

// TestLookup has a daemon answer for its root from memory, and for a name in it as its
// storage does. A call that names the volume says so, and changes nothing.
func TestLookup(t *testing.T) {
	for name, tc := range map[string]struct {
		// before is whether the storage has answered the question once.
		before bool
		errno  syscall.Errno
		says   string // empty: healthy
	}{
		"EIO":                      {true, unix.EIO, "EIO"},
		"ETIMEDOUT":                {false, unix.ETIMEDOUT, "ETIMEDOUT"},
		"EACCES":                   {true, unix.EACCES, "EACCES"},
		"EPERM":                    {true, unix.EPERM, "EPERM"},
		"EACCES from the start":    {false, unix.EACCES, ""},
		"EPERM from the start":     {false, unix.EPERM, ""},
		"ENAMETOOLONG":             {true, unix.ENAMETOOLONG, ""},
		"ENOSYS":                   {true, unix.ENOSYS, ""},
		"no such name, and before": {true, unix.ENOENT, ""},
	} {
		t.Run(name, func(t *testing.T) {
			n := harness.NewNode(t, "--standalone", "--fuse-abort").Start()
			v, fs := n.NewFUSEVolume("v", faultfs.Config{})
			if tc.before {
				n.Expect("healthy", v.Request())
			}
			table := n.Table()
			fs.Fail(tc.errno, faultfs.Lookup)
			for range 2 {
				if tc.says == "" {
					n.Expect("healthy", v.Request())
					continue
				}
				n.Expect("abnormal", v.Request(), "BackendUnreachable", tc.says, "Nothing was changed")
			}
			n.SameTable(table)
			fs.Lift()
			n.Expect("healthy", v.Request())
		})
	}
}

// TestLookupWithoutAnswer has a daemon that answers for its root, and never for a name in
// it: that is asked once, however often a call names the volume.
func TestLookupWithoutAnswer(t *testing.T) {
	n := harness.NewNode(t, "--standalone", "--fuse-abort", "--probe-timeout=3s").Start()
	v, fs := n.NewFUSEVolume("v", faultfs.Config{})
	n.Expect("healthy", v.Request())
	table := n.Table()
	fs.Hang(faultfs.Lookup)
	asked := fs.Requests(faultfs.Lookup)
	for range 4 {
		n.Expect("abnormal", v.Request(), "BackendUnreachable", "no answer", "Nothing was changed")
	}
	if now := fs.Requests(faultfs.Lookup); now != asked+1 {
		t.Errorf("it was asked %d times", now-asked)
	}
	n.SameTable(table)
	fs.Lift()
	soon(n, "healthy", v.Request())
}

// TestLookupAsksOnly names who has a name looked up: a call that names the volume, unless
// requests wait, or the driver is not to be asked.
func TestLookupAsksOnly(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		ask  func(n *harness.Node, v *harness.Volume, fs *faultfs.FS)
		asks bool
	}{
		"NodeHealer": {nil, func(n *harness.Node, v *harness.Volume, _ *faultfs.FS) { n.Expect("healthy", v.Request()) }, true},
		"healerctl check": {nil, func(n *harness.Node, v *harness.Volume, _ *faultfs.FS) {
			_, err := adminpb.NewAdminClient(n.Conn).CheckVolume(context.Background(), &adminpb.CheckVolumeRequest{VolumeId: v.ID})
			harness.Must(n.T, err)
		}, true},
		"a driver that is not asked": {[]string{"--no-lookup-driver=" + harness.Driver}, func(n *harness.Node, v *harness.Volume, _ *faultfs.FS) { n.Expect("healthy", v.Request()) }, false},
		"a request waits": {nil, func(n *harness.Node, v *harness.Volume, fs *faultfs.FS) {
			fs.Hang(faultfs.Readdir)
			lists := exec.Command("ls", v.Staging)
			harness.Must(n.T, lists.Start())
			defer func() { fs.Lift(); _ = lists.Wait() }()
			fs.AwaitWaiting(1)
			n.Expect("healthy", v.Request())
		}, false},
		"the loop":               {[]string{"--loop=observe"}, seenByLoop, false},
		"the loop, by the clock": {[]string{"--loop=observe", "--lookup-interval=1h"}, seenByLoop, true},
		"the loop, and something is wrong": {[]string{"--loop=observe"}, func(n *harness.Node, v *harness.Volume, fs *faultfs.FS) {
			n.NewContainer(harness.PodUID, v.MountPoint()) // or nothing says that it is wanted
			seenByLoop(n, v, fs)
			v.Unpublish()
			harness.Eventually(n.T, "the lost bind is noticed", func() bool { return strings.Contains(n.Log.String(), `found="NotMounted"`) })
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			n := harness.NewNode(t, append([]string{"--standalone"}, tc.args...)...).Start()
			v, fs := n.NewFUSEVolume("v", faultfs.Config{})
			tc.ask(n, v, fs)
			if asked := fs.Requests(faultfs.Lookup); (asked > 0) != tc.asks {
				t.Errorf("it was asked %d times", asked)
			}
		})
	}
}

// seenByLoop waits until the loop has found a volume healthy.
func seenByLoop(n *harness.Node, _ *harness.Volume, _ *faultfs.FS) {
	n.T.Helper()
	harness.Eventually(n.T, "the loop has checked the volume", func() bool {
		records, err := filepath.Glob(filepath.Join(n.StateDir(), "records", "*.json"))
		return err == nil && len(records) == 1
	})
}
