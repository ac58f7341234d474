package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// laidOut makes a path of kubelet's, with its file, and mounts something there
// if that is wanted.
func laidOut(t *testing.T, n *Node, at, driver, handle string, mounted bool) {
	t.Helper()
	file := n.Kubelet().Layout(at).VolData
	done(t, os.MkdirAll(at, 0o700))
	done(t, os.MkdirAll(filepath.Dir(file), 0o700))
	done(t, os.WriteFile(file, fmt.Appendf(nil, `{"driverName":%q,"volumeHandle":%q}`, driver, handle), 0o600))
	if mounted {
		done(t, unix.Mount("test", at, "tmpfs", 0, ""))
		t.Cleanup(func() { done(t, syscall.Unmount(at, 0)) })
	}
}

func TestFind(t *testing.T) {
	realKernel(t)
	n, root := newNode(t)
	pod := func(uid, pv string) string {
		return root + "/pods/" + uid + "/volumes/kubernetes.io~csi/" + pv + "/mount"
	}
	block := root + "/plugins/kubernetes.io/csi/volumeDevices/publish/pv-raw/uid"
	below := n.Kubelet().Staging("d", "below") + "/below"
	laidOut(t, n, n.Kubelet().Staging("d", "staging"), "d", "staging", true)
	laidOut(t, n, pod("1", "pv-staged"), "d", "staging", true)
	laidOut(t, n, below, "d", "below", true)
	laidOut(t, n, n.Kubelet().Staging("d", "target"), "d", "target", false) // kubelet makes it for all drivers
	laidOut(t, n, pod("2", "pv-published"), "d", "target", true)
	laidOut(t, n, pod("1", "pv-published"), "d", "target", true)
	laidOut(t, n, pod("1", "pv-other"), "other", "theirs", true)
	laidOut(t, n, pod("1", "pv-lost"), "d", "lost", false)
	torn := pod("1", "pv-torn")
	laidOut(t, n, torn, "d", "torn", false)
	done(t, os.WriteFile(n.Kubelet().Layout(torn).VolData, []byte(`{"driverName":"d","volumeHandle":"to`), 0o600))
	laidOut(t, n, n.Kubelet().Staging("d", "on its way"), "d", "on its way", false)
	laidOut(t, n, pod("1", "pv-on-its-way"), "d", "on its way", false)
	done(t, os.Remove(pod("1", "pv-on-its-way"))) // which the driver makes
	laidOut(t, n, n.Kubelet().Staging("d", "lost, unstaged"), "d", "lost, unstaged", false)
	laidOut(t, n, pod("1", "pv-lost-unstaged"), "d", "lost, unstaged", false)
	laidOut(t, n, block, "d", "raw", true)
	lostBlock := root + "/plugins/kubernetes.io/csi/volumeDevices/publish/pv-raw-lost/uid"
	laidOut(t, n, lostBlock, "d", "raw, lost", false)
	laidOut(t, n, n.Kubelet().Staging("d", "never mounted"), "d", "never mounted", false)
	for handle, want := range map[string]string{
		"staging":        n.Kubelet().Staging("d", "staging"),
		"below":          below,
		"target":         pod("1", "pv-published"),
		"raw":            block,
		"raw, lost":      lostBlock,
		"never mounted":  n.Kubelet().Staging("d", "never mounted"),
		"theirs":         "",
		"lost":           pod("1", "pv-lost"),
		"lost, unstaged": pod("1", "pv-lost-unstaged"),
		"on its way":     n.Kubelet().Staging("d", "on its way"),
		"torn":           "",
		"unknown":        "",
		"":               "",
		"../../x":        "",
	} {
		if got, err := n.Find(context.Background(), "d", handle); err != nil || got != want {
			t.Errorf("%q: got %q, %v, want %q", handle, got, err, want)
		}
	}
	if got, err := n.Find(context.Background(), "other", "theirs"); err != nil || got != pod("1", "pv-other") {
		t.Errorf("another driver's: %q, %v", got, err)
	}
	alone, _ := newNode(t) // without a worker, which might answer all the same
	over, cancel := context.WithCancel(context.Background())
	cancel()
	if got, err := alone.Find(over, "d", "unknown"); err == nil {
		t.Errorf("without a worker: %q", got)
	}
}

// That kubelet's directories cannot be listed hides nothing that is mounted.
func TestFindWithoutAListing(t *testing.T) {
	realKernel(t)
	n, root := newNode(t)
	block := root + "/plugins/kubernetes.io/csi/volumeDevices/publish/pv-raw/uid"
	laidOut(t, n, block, "d", "raw", true)
	done(t, os.Symlink("elsewhere", n.Kubelet().Pods())) // which is refused
	if got, err := n.Find(context.Background(), "d", "raw"); err != nil || got != block {
		t.Errorf("got %q, %v, want %q", got, err, block)
	}
	if got, err := n.Find(context.Background(), "d", "unknown"); err == nil {
		t.Errorf("not mounted: got %q", got)
	}
}

// What is read in several calls is found as well.
func TestFindAmongMany(t *testing.T) {
	realKernel(t)
	n, root := newNode(t)
	last := ""
	for i := range maxAsked + 2 {
		last = fmt.Sprintf("%s/pods/uid/volumes/kubernetes.io~csi/pv-%04d/mount", root, i)
		laidOut(t, n, last, "d", fmt.Sprint("volume-", i), true)
	}
	got, err := n.Find(context.Background(), "d", fmt.Sprint("volume-", maxAsked+1))
	if err != nil || !strings.HasSuffix(got, last) {
		t.Errorf("got %q, %v, want %q", got, err, last)
	}
}
