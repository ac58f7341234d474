package ops

import (
	"errors"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/facts/layout"
)

func TestPublished(t *testing.T) {
	pods := realDir(t)
	if got, err := published(PublishedQuery{Pods: pods + "/none", Volumes: layout.PodVolumes, Max: 9}); err != nil || got.Volumes != nil {
		t.Errorf("no pods yet: %v, %v", got, err)
	}
	for _, dir := range []string{
		"uid-a/volumes/kubernetes.io~csi/pv1/mount", "uid-a/volumes/kubernetes.io~csi/pv 2", "uid-b/volumes/kubernetes.io~empty-dir/x",
		"uid-c", "uid-d/volumes/kubernetes.io~csi",
	} {
		must(t, os.MkdirAll(pods+"/"+dir, 0o700))
	}
	must(t, os.WriteFile(pods+"/file", nil, 0o600))
	must(t, os.Symlink("uid-a", pods+"/link"))
	must(t, os.Mkdir(pods+"/uid-e", 0o700))
	must(t, os.Symlink(pods+"/uid-a/volumes", pods+"/uid-e/volumes"))
	const names = 9 // 7 of pods, 2 of volumes
	got, err := published(PublishedQuery{Pods: pods, Volumes: layout.PodVolumes, Max: names})
	slices.SortFunc(got.Volumes, func(a, b PublishedVolume) int { return len(a.PV) - len(b.PV) })
	if want := []PublishedVolume{{PodUID: "uid-a", PV: "pv1"}, {PodUID: "uid-a", PV: "pv 2"}}; err != nil || got.Unread != nil || !slices.Equal(got.Volumes, want) {
		t.Errorf("got %v, %v", got, err)
	}
	for _, limit := range []int{0, 6, names - 1} {
		if got, err := published(PublishedQuery{Pods: pods, Volumes: layout.PodVolumes, Max: limit}); !errors.Is(err, unix.E2BIG) {
			t.Errorf("at most %d names: %v, %v", limit, got, err)
		}
	}
	if got, err := published(PublishedQuery{Pods: pods + "/link", Volumes: layout.PodVolumes, Max: names}); !errors.Is(err, unix.ELOOP) {
		t.Errorf("through a link: %v, %v", got, err)
	}
}

func TestPublishedDevices(t *testing.T) {
	root := realDir(t)
	for _, dir := range []string{"pods", "publish/pv-raw"} {
		must(t, os.MkdirAll(root+"/"+dir, 0o700))
	}
	must(t, os.WriteFile(root+"/publish/pv-raw/uid-a", nil, 0o600))
	got, err := published(PublishedQuery{Pods: root + "/pods", Volumes: layout.PodVolumes, Devices: root + "/publish", Max: 9})
	if want := []PublishedVolume{{PodUID: "uid-a", PV: "pv-raw", Block: true}}; err != nil || got.Unread != nil || !slices.Equal(got.Volumes, want) {
		t.Errorf("got %v, %v", got, err)
	}
}

// What is mounted over kubelet's directories is not entered: it may not answer.
func TestPublishedEntersNoMount(t *testing.T) {
	pods := realDir(t)
	at := pods + "/uid-a/volumes/kubernetes.io~csi"
	must(t, os.MkdirAll(at, 0o700))
	if err := unix.Mount("test", at, "tmpfs", 0, ""); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	t.Cleanup(func() { must(t, unix.Unmount(at, 0)) })
	must(t, os.Mkdir(at+"/pv1", 0o700))
	if got, err := published(PublishedQuery{Pods: pods, Volumes: layout.PodVolumes, Max: 9}); err != nil || got.Volumes != nil || got.Unread != nil {
		t.Errorf("got %v, %v", got, err)
	}
}

// heedingModes runs a function without root's right to read what no mode allows.
func heedingModes(t *testing.T, do func()) {
	t.Helper()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread() // and the thread ends with it
		header, data := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
		if err := unix.Capget(&header, &data[0]); err != nil {
			t.Error(err)
		}
		data[0].Effective &^= 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH
		if err := unix.Capset(&header, &data[0]); err != nil {
			t.Error(err)
		}
		do()
	}()
	<-ended
}

// A directory that cannot be read hides no other.
func TestPublishedLeavesOutWhatItCannotRead(t *testing.T) {
	root := realDir(t)
	pods, devices := root+"/pods", root+"/publish"
	for _, dir := range []string{
		"pods/uid-a/volumes/kubernetes.io~csi/pv1",
		"pods/uid-b/volumes/kubernetes.io~csi/pv2",
		"pods/uid-c/volumes/kubernetes.io~csi/pv3",
		"publish/pv4/uid-a",
		"publish/pv5/uid-a",
	} {
		must(t, os.MkdirAll(root+"/"+dir, 0o700))
	}
	closed := []string{pods + "/uid-b/volumes/kubernetes.io~csi", devices + "/pv4"}
	for _, dir := range closed {
		must(t, os.Chmod(dir, 0))
		t.Cleanup(func() { must(t, os.Chmod(dir, 0o700)) }) //nolint:gosec // a directory
	}
	heedingModes(t, func() {
		got, err := published(PublishedQuery{Pods: pods, Volumes: layout.PodVolumes, Devices: devices, Max: 99})
		slices.SortFunc(got.Volumes, func(a, b PublishedVolume) int { return strings.Compare(a.PV, b.PV) })
		want := []PublishedVolume{{PodUID: "uid-a", PV: "pv1"}, {PodUID: "uid-c", PV: "pv3"}, {PodUID: "uid-a", PV: "pv5", Block: true}}
		unread := []UnreadPath{{closed[0], "permission denied"}, {closed[1], "permission denied"}}
		if err != nil || !slices.Equal(got.Volumes, want) || !slices.Equal(got.Unread, unread) {
			t.Errorf("got %v, %v", got, err)
		}
	})
}
